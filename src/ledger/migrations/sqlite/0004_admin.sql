-- The trust of the admin API: who may ask, what has been answered, and who did what.

-- Keys of the admin API. A secret follows from the server's key secret, the key's id and its generation, so nothing here lets anybody
-- sign; the hash only tells whether a server holds the key secret that the key was made with.
CREATE TABLE api_keys (
    id               TEXT    NOT NULL PRIMARY KEY,
    name             TEXT    NOT NULL,
    roles            TEXT    NOT NULL,                     -- role names with a comma between them
    generation       INTEGER NOT NULL CHECK (generation >= 1),
    secret_hash      TEXT    NOT NULL,                     -- SHA-256 of this generation's secret, hex
    overlap_until_ms INTEGER NOT NULL DEFAULT 0,           -- the generation before is good until then
    rotation_key     TEXT    NOT NULL DEFAULT '',          -- idempotency key of the last rotation
    created_at_ms    INTEGER NOT NULL,
    expires_at_ms    INTEGER,
    revoked_at_ms    INTEGER,
    last_used_at_ms  INTEGER
) STRICT;

CREATE TRIGGER api_keys_never_come_back BEFORE UPDATE OF revoked_at_ms ON api_keys
WHEN OLD.revoked_at_ms IS NOT NULL AND NEW.revoked_at_ms IS NOT OLD.revoked_at_ms
BEGIN
    SELECT RAISE(ABORT, 'a revoked key stays revoked');
END;

CREATE TRIGGER api_keys_delete BEFORE DELETE ON api_keys
BEGIN
    SELECT RAISE(ABORT, 'a key is never deleted: its name stands in the log');
END;

-- Writes by their idempotency key: at work while status is null, answered afterwards. Rows go when they are old.
CREATE TABLE requests (
    key              TEXT    NOT NULL PRIMARY KEY,
    fingerprint      TEXT    NOT NULL,                     -- SHA-256 of method, path, query and body, hex
    holder           TEXT    NOT NULL,                     -- the request that is at work on it
    held_until_ms    INTEGER NOT NULL,                     -- unless it says that it still is
    status           INTEGER,
    answer           TEXT,                                 -- the body
    request_id       TEXT    NOT NULL,
    caller           TEXT    NOT NULL,
    caller_name      TEXT    NOT NULL,
    method           TEXT    NOT NULL,
    path             TEXT    NOT NULL,
    operation        TEXT    NOT NULL,
    target           TEXT    NOT NULL,
    before           TEXT,
    created_at_ms    INTEGER NOT NULL
) STRICT;

CREATE INDEX requests_by_age ON requests (created_at_ms);

-- Who did what. Rows are only ever added.
CREATE TABLE log (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms       INTEGER NOT NULL,
    request_id  TEXT    NOT NULL,
    caller      TEXT    NOT NULL, -- id of the key
    caller_name TEXT    NOT NULL, -- its name then
    method      TEXT    NOT NULL,
    path        TEXT    NOT NULL,
    operation   TEXT    NOT NULL,
    target      TEXT    NOT NULL, -- like rain:7, key:k1f, or nothing
    status      INTEGER NOT NULL, -- HTTP status; 0 when nobody knows how it ended
    outcome     TEXT    NOT NULL, -- done, refused, failed or unknown, and why
    before      TEXT,             -- JSON: the target before
    after       TEXT              -- JSON: the answer
) STRICT;

CREATE INDEX log_by_target ON log (target, id);

CREATE TRIGGER log_update BEFORE UPDATE ON log
BEGIN
    SELECT RAISE(ABORT, 'a line of the log is never changed');
END;

CREATE TRIGGER log_delete BEFORE DELETE ON log
BEGIN
    SELECT RAISE(ABORT, 'a line of the log is never deleted');
END;

-- INSERT OR REPLACE would delete the row that is there, and no trigger would see it.
CREATE TRIGGER log_never_replace BEFORE INSERT ON log
WHEN EXISTS (SELECT 1 FROM log WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'a line of the log is never replaced');
END;
