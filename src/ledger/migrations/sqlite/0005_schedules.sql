-- Templates, schedules and their openings. None of it moves money: the rain of an opening is created like any other, with the key
-- schedule:<id>:<opening>, and that key alone keeps it from being created twice.

CREATE TABLE templates (
    name          TEXT    NOT NULL PRIMARY KEY,
    rain          TEXT    NOT NULL, -- JSON, as POST /v1/rains takes it, without times
    created_at_ms INTEGER NOT NULL,
    changed_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE schedules (
    id            INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, -- never used again: the keys of rains are made of it
    request_key   TEXT    NOT NULL UNIQUE,                    -- the caller's idempotency key
    request       TEXT    NOT NULL,                           -- what was asked for, to tell a repeat from another request with the same key
    template      TEXT    NOT NULL,
    overrides     TEXT    NOT NULL,                           -- JSON object, laid over the template's rain
    times         TEXT    NOT NULL,                           -- JSON
    ahead_ms      INTEGER NOT NULL CHECK (ahead_ms > 0),
    decided_ms    INTEGER NOT NULL,                           -- openings up to this instant have their rain, or have been missed
    ended         INTEGER NOT NULL DEFAULT 0 CHECK (ended IN (0, 1)),
    created_at_ms INTEGER NOT NULL
) STRICT;

CREATE INDEX schedules_by_template ON schedules (template);

CREATE TABLE openings (
    schedule_id  INTEGER NOT NULL REFERENCES schedules (id),
    opens_at_ms  INTEGER NOT NULL,
    rain_id      INTEGER REFERENCES rains (id),
    problem      TEXT,             -- why there is no rain
    missed       INTEGER NOT NULL DEFAULT 0 CHECK (missed IN (0, 1)), -- its time came, and there was no rain
    tried_at_ms  INTEGER NOT NULL,
    PRIMARY KEY (schedule_id, opens_at_ms),
    CHECK ((rain_id IS NULL) = (problem IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- From when on the room of a rain is told of it; without it as soon as the rain is known.
ALTER TABLE rains ADD COLUMN announce_at_ms INTEGER;
