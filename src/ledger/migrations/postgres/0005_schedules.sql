-- Templates, schedules and their openings. None of it moves money: the rain of an opening is created like any other, with the key
-- schedule:<id>:<opening>, and that key alone keeps it from being created twice.

CREATE TABLE templates (
    name          TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    rain          TEXT    NOT NULL, -- JSON, as POST /v1/rains takes it, without times
    created_at_ms BIGINT NOT NULL,
    changed_at_ms BIGINT NOT NULL
);

CREATE TABLE schedules (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- never used again: the keys of rains are made of it
    request_key   TEXT COLLATE "C" NOT NULL UNIQUE,                    -- the caller's idempotency key
    request       TEXT    NOT NULL,                           -- what was asked for, to tell a repeat from another request with the same key
    template      TEXT COLLATE "C" NOT NULL,
    overrides     TEXT    NOT NULL,                           -- JSON object, laid over the template's rain
    times         TEXT    NOT NULL,                           -- JSON
    ahead_ms      BIGINT NOT NULL CHECK (ahead_ms > 0),
    decided_ms    BIGINT NOT NULL,                           -- openings up to this instant have their rain, or have been missed
    ended         BIGINT NOT NULL DEFAULT 0 CHECK (ended IN (0, 1)),
    created_at_ms BIGINT NOT NULL
);

CREATE INDEX schedules_by_template ON schedules (template);

CREATE TABLE openings (
    schedule_id  BIGINT NOT NULL REFERENCES schedules (id),
    opens_at_ms  BIGINT NOT NULL,
    rain_id      BIGINT REFERENCES rains (id),
    problem      TEXT,             -- why there is no rain
    missed       BIGINT NOT NULL DEFAULT 0 CHECK (missed IN (0, 1)), -- its time came, and there was no rain
    tried_at_ms  BIGINT NOT NULL,
    PRIMARY KEY (schedule_id, opens_at_ms),
    CHECK ((rain_id IS NULL) = (problem IS NOT NULL))
);

-- From when on the room of a rain is told of it; without it as soon as the rain is known.
ALTER TABLE rains ADD COLUMN announce_at_ms BIGINT;
