-- Top-ups: packets and money that a rain was given after its creation. What it was created with stays in the rain's own row.
--
-- The money of top-up n moves by the entry with the key fund:<rain>:<n>, written in the same transaction as its row here. The packets'
-- amounts follow from split and seed, so a row is never changed but for the mark that its packets have been in their pools.

CREATE TABLE top_ups (
    rain_id       BIGINT NOT NULL REFERENCES rains (id),
    number        BIGINT NOT NULL CHECK (number >= 1),     -- counted within the rain, in the order of the packets
    request_key   TEXT COLLATE "C" NOT NULL UNIQUE,        -- the caller's idempotency key
    request       TEXT   NOT NULL,                         -- what was asked for, to tell a repeat from another request with the same key
    split         TEXT   NOT NULL,                         -- JSON
    seed          BYTEA  NOT NULL CHECK (length(seed) = 32),
    loaded        BIGINT NOT NULL DEFAULT 0 CHECK (loaded IN (0, 1)), -- every packet has been in its pool
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (rain_id, number)
);

CREATE TRIGGER top_ups_update
BEFORE UPDATE OF rain_id, number, request_key, request, split, seed, created_at_ms ON top_ups
FOR EACH STATEMENT EXECUTE FUNCTION refuse('a top-up is never changed');

CREATE TRIGGER top_ups_delete BEFORE DELETE OR TRUNCATE ON top_ups
FOR EACH STATEMENT EXECUTE FUNCTION refuse('a top-up is never deleted');
