-- Top-ups: packets and money that a rain was given after its creation. What it was created with stays in the rain's own row.
--
-- The money of top-up n moves by the entry with the key fund:<rain>:<n>, written in the same transaction as its row here. The packets'
-- amounts follow from split and seed, so a row is never changed but for the mark that its packets have been in their pools.

CREATE TABLE top_ups (
    rain_id       INTEGER NOT NULL REFERENCES rains (id),
    number        INTEGER NOT NULL CHECK (number >= 1), -- counted within the rain, in the order of the packets
    request_key   TEXT    NOT NULL UNIQUE,              -- the caller's idempotency key
    request       TEXT    NOT NULL,                     -- what was asked for, to tell a repeat from another request with the same key
    split         TEXT    NOT NULL,                     -- JSON
    seed          BLOB    NOT NULL CHECK (length(seed) = 32),
    loaded        INTEGER NOT NULL DEFAULT 0 CHECK (loaded IN (0, 1)), -- every packet has been in its pool
    created_at_ms INTEGER NOT NULL,
    PRIMARY KEY (rain_id, number)
) STRICT;

-- INSERT OR REPLACE would delete the row that is there, and no trigger would see it.
CREATE TRIGGER top_ups_never_replace BEFORE INSERT ON top_ups
WHEN EXISTS (SELECT 1 FROM top_ups WHERE rain_id = NEW.rain_id AND number = NEW.number)
BEGIN
    SELECT RAISE(ABORT, 'a top-up is never replaced');
END;

CREATE TRIGGER top_ups_update
BEFORE UPDATE OF rain_id, number, request_key, request, split, seed, created_at_ms ON top_ups
BEGIN
    SELECT RAISE(ABORT, 'a top-up is never changed');
END;

CREATE TRIGGER top_ups_delete BEFORE DELETE ON top_ups
BEGIN
    SELECT RAISE(ABORT, 'a top-up is never deleted');
END;
