-- Events and who is told of them. An event is written in the transaction of the fact it tells, together with a delivery for each webhook
-- that wants it: neither is without the other.

-- What has happened. The id says what it is about, so a fact that is seen twice is one event. Rows go when they are old, have no delivery,
-- and their rain is finished: from then on nobody can see their fact again.
CREATE TABLE events (
    id      TEXT    NOT NULL PRIMARY KEY, -- like opened:7, sold_out:7:4, dead:30064771113:1790000000000
    kind    TEXT    NOT NULL,             -- like rain.opened
    rain_id INTEGER,
    at_ms   INTEGER NOT NULL,
    body    TEXT    NOT NULL              -- the JSON that is sent, byte by byte
) STRICT;

CREATE INDEX events_by_age ON events (at_ms);

-- Endpoints of other people. A secret follows from the server's key secret, the webhook's id and its generation, as those of keys do: see
-- api_keys. One that is deleted stays, since its name stands in the log.
CREATE TABLE webhooks (
    id               TEXT    NOT NULL PRIMARY KEY,
    url              TEXT    NOT NULL,
    events           TEXT    NOT NULL,               -- kinds, each with a comma before and behind it: ,rain.opened,claim.dead,
    enabled          INTEGER NOT NULL CHECK (enabled IN (0, 1)),
    generation       INTEGER NOT NULL CHECK (generation >= 1),
    secret_hash      TEXT    NOT NULL,               -- SHA-256 of this generation's secret, hex
    overlap_until_ms INTEGER NOT NULL DEFAULT 0,     -- until then it is signed with the generation before as well
    rotation_key     TEXT    NOT NULL DEFAULT '',    -- idempotency key of the last rotation
    created_at_ms    INTEGER NOT NULL,
    deleted_at_ms    INTEGER
) STRICT;

CREATE TABLE deliveries (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id      TEXT    NOT NULL REFERENCES events (id),
    webhook_id    TEXT    NOT NULL REFERENCES webhooks (id),
    state         TEXT    NOT NULL CHECK (state IN ('pending', 'delivered', 'failed')),
    tries         INTEGER NOT NULL DEFAULT 0, -- since it was made or sent again by hand
    attempts      INTEGER NOT NULL DEFAULT 0, -- of all time
    due_ms        INTEGER NOT NULL,           -- while it is pending: not before
    since_ms      INTEGER NOT NULL,           -- pending, delivered or failed since then
    holder        TEXT    NOT NULL DEFAULT '',
    held_until_ms INTEGER NOT NULL DEFAULT 0, -- whoever holds it is sending it
    UNIQUE (event_id, webhook_id)
) STRICT;

CREATE INDEX deliveries_to_do ON deliveries (webhook_id, due_ms) WHERE state = 'pending';
CREATE INDEX deliveries_by_state ON deliveries (state, id);
CREATE INDEX deliveries_by_webhook ON deliveries (webhook_id, id);

-- Every try, with how it went.
CREATE TABLE delivery_attempts (
    delivery_id INTEGER NOT NULL REFERENCES deliveries (id) ON DELETE CASCADE,
    number      INTEGER NOT NULL, -- from 1
    at_ms       INTEGER NOT NULL,
    took_ms     INTEGER NOT NULL,
    status      INTEGER,          -- HTTP status, if there was an answer
    error       TEXT,             -- why it does not count as delivered
    PRIMARY KEY (delivery_id, number)
) STRICT;
