-- Who is logged in to the console. Only hashes: whoever reads this table has no session.
CREATE TABLE console_sessions (
    hash          TEXT COLLATE "C" NOT NULL PRIMARY KEY,            -- SHA-256 of the cookie, hex
    key_id        TEXT    NOT NULL,                        -- of the API key that logged in
    secret_hash   TEXT    NOT NULL,                        -- SHA-256 of its secret then, hex: ends with that secret
    created_at_ms BIGINT  NOT NULL,
    seen_at_ms    BIGINT  NOT NULL
);

CREATE INDEX console_sessions_by_key ON console_sessions (key_id, created_at_ms);
