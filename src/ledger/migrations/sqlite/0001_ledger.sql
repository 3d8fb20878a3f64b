-- The ledger: accounts, the two journals that alone move money between them, and the rains.
--
-- Every journal row takes a positive amount from one account and gives it to another, and only the triggers of the journals change a
-- balance: no row can be unbalanced, so the sum over all accounts is zero after every statement, whoever wrote it.
--
-- Guards raise explicitly, even where a CHECK says the same: INSERT OR IGNORE, OR FAIL and OR REPLACE hand their leniency down to the
-- statements inside a trigger, which would leave a journal row without its money. RAISE(ABORT) always takes the whole statement back.

CREATE TABLE accounts (
    name          TEXT    NOT NULL PRIMARY KEY, -- deposits, sponsor:<name>, escrow:<rain>, user:<user>
    balance_cents INTEGER NOT NULL DEFAULT 0,
    CHECK (balance_cents >= 0 OR name = 'deposits')
) STRICT, WITHOUT ROWID;

-- Whether a journal row is moving its money right now. SQLite cannot tell a trigger from a person in any other way.
CREATE TABLE moving (yes INTEGER NOT NULL CHECK (yes IN (0, 1))) STRICT;
INSERT INTO moving (yes) VALUES (0);

CREATE TABLE credits (
    packet_id INTEGER NOT NULL PRIMARY KEY CHECK (packet_id >= 4294967296), -- rain id << 32 | index
    user_id   TEXT    NOT NULL CHECK (user_id <> ''),
    cents     INTEGER NOT NULL CHECK (cents > 0),
    at_ms     INTEGER NOT NULL
) STRICT;

-- No index by user, unlike PostgreSQL: users come in no order, so each credit would write one more page to the log (measured: a third
-- of the rate at 200,000 users). Reading one user's credits scans the table instead, about 0.1 s per million.

CREATE TABLE entries (
    id           INTEGER NOT NULL PRIMARY KEY,
    key          TEXT    NOT NULL UNIQUE, -- deposit:<key>, fund:<rain>, refund:<rain>, discard:<packet>
    kind         TEXT    NOT NULL,
    from_account TEXT    NOT NULL,
    to_account   TEXT    NOT NULL CHECK (to_account <> from_account),
    cents        INTEGER NOT NULL CHECK (cents > 0),
    rain_id      INTEGER,
    packet_id    INTEGER UNIQUE,
    at_ms        INTEGER NOT NULL,
    note         TEXT,
    CHECK ((kind = 'discard') = (packet_id IS NOT NULL))
) STRICT;

CREATE INDEX entries_by_from_account ON entries (from_account);
CREATE INDEX entries_by_to_account ON entries (to_account);
CREATE INDEX entries_by_rain ON entries (rain_id);

CREATE TABLE rains (
    id              INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT CHECK (id BETWEEN 1 AND 2147483647),
    request_key     TEXT UNIQUE,      -- the creation's idempotency key
    request         TEXT    NOT NULL, -- what was asked for, to tell a repeat from another request with the same key
    title           TEXT    NOT NULL,
    room            TEXT    NOT NULL,
    sponsor         TEXT    NOT NULL,
    split           TEXT    NOT NULL, -- JSON
    seed            BLOB    NOT NULL CHECK (length(seed) = 32),
    salts           TEXT    NOT NULL, -- JSON, one number per bucket
    opens_at_ms     INTEGER,
    duration_ms     INTEGER NOT NULL CHECK (duration_ms > 0),
    durability      TEXT    NOT NULL,
    refund_after_ms INTEGER NOT NULL CHECK (refund_after_ms >= 0),
    state           TEXT    NOT NULL,
    loaded          INTEGER NOT NULL DEFAULT 0 CHECK (loaded IN (0, 1)),   -- every packet has been in its pool
    sold_out        INTEGER NOT NULL DEFAULT 0 CHECK (sold_out IN (0, 1)), -- every pool was seen empty at one moment
    version         INTEGER NOT NULL,
    created_at_ms   INTEGER NOT NULL
) STRICT;

CREATE INDEX rains_unfinished ON rains (id) WHERE state <> 'finished';

-- Accounts: opened empty, never closed, changed only by a journal.

CREATE TRIGGER accounts_open BEFORE INSERT ON accounts
BEGIN
    SELECT RAISE(ABORT, 'an account is opened with a balance of zero')
    WHERE NEW.balance_cents <> 0 AND (SELECT yes FROM moving) = 0;
    SELECT RAISE(IGNORE) WHERE EXISTS (SELECT 1 FROM accounts WHERE name = NEW.name);
END;

CREATE TRIGGER accounts_change BEFORE UPDATE ON accounts
BEGIN
    SELECT RAISE(ABORT, 'a balance changes only by a row in a journal')
    WHERE (SELECT yes FROM moving) = 0 OR NEW.name <> OLD.name;
    SELECT RAISE(ABORT, 'a balance must not fall below zero')
    WHERE NEW.balance_cents < 0 AND NEW.name <> 'deposits';
    SELECT RAISE(ABORT, 'a balance must not exceed the largest integer')
    WHERE typeof(NEW.balance_cents) <> 'integer';
END;

CREATE TRIGGER accounts_delete BEFORE DELETE ON accounts
BEGIN
    SELECT RAISE(ABORT, 'an account is never deleted');
END;

-- Credits: from the rain's escrow to the user. The packet id is the key, so a packet pays once.

CREATE TRIGGER credits_never_replace BEFORE INSERT ON credits
WHEN EXISTS (SELECT 1 FROM credits WHERE packet_id = NEW.packet_id)
BEGIN
    SELECT RAISE(IGNORE);
END;

CREATE TRIGGER credits_move_money AFTER INSERT ON credits
BEGIN
    SELECT RAISE(ABORT, 'the packet has been discarded')
    WHERE EXISTS (SELECT 1 FROM entries WHERE packet_id = NEW.packet_id);

    UPDATE moving SET yes = 1;
    UPDATE accounts SET balance_cents = balance_cents - NEW.cents WHERE name = 'escrow:' || (NEW.packet_id >> 32);
    SELECT RAISE(ABORT, 'the rain has no escrow account') WHERE changes() = 0;
    UPDATE accounts SET balance_cents = balance_cents + NEW.cents WHERE name = 'user:' || NEW.user_id;
    INSERT INTO accounts (name, balance_cents) SELECT 'user:' || NEW.user_id, NEW.cents WHERE changes() = 0;
    UPDATE moving SET yes = 0;
END;

CREATE TRIGGER credits_update BEFORE UPDATE ON credits
BEGIN
    SELECT RAISE(ABORT, 'a journal row is never changed');
END;

CREATE TRIGGER credits_delete BEFORE DELETE ON credits
BEGIN
    SELECT RAISE(ABORT, 'a journal row is never deleted');
END;

-- Entries: everything else that moves money.

CREATE TRIGGER entries_never_replace BEFORE INSERT ON entries
WHEN EXISTS (SELECT 1 FROM entries WHERE key = NEW.key OR id = NEW.id OR packet_id = NEW.packet_id)
BEGIN
    SELECT RAISE(IGNORE);
END;

CREATE TRIGGER entries_move_money AFTER INSERT ON entries
BEGIN
    SELECT RAISE(ABORT, 'the packet has been credited')
    WHERE EXISTS (SELECT 1 FROM credits WHERE packet_id = NEW.packet_id);

    UPDATE moving SET yes = 1;
    UPDATE accounts SET balance_cents = balance_cents - NEW.cents WHERE name = NEW.from_account;
    SELECT RAISE(ABORT, 'the account that pays does not exist') WHERE changes() = 0;
    UPDATE accounts SET balance_cents = balance_cents + NEW.cents WHERE name = NEW.to_account;
    SELECT RAISE(ABORT, 'the account that receives does not exist') WHERE changes() = 0;
    UPDATE moving SET yes = 0;
END;

CREATE TRIGGER entries_update BEFORE UPDATE ON entries
BEGIN
    SELECT RAISE(ABORT, 'a journal row is never changed');
END;

CREATE TRIGGER entries_delete BEFORE DELETE ON entries
BEGIN
    SELECT RAISE(ABORT, 'a journal row is never deleted');
END;

-- A deleted rain would free its id, and with it the ids of packets that have been paid.

CREATE TRIGGER rains_delete BEFORE DELETE ON rains
BEGIN
    SELECT RAISE(ABORT, 'a rain is never deleted');
END;

INSERT INTO accounts (name) VALUES ('deposits');

-- Claims that a person gave up although their packet was paid to another claim: no money moves, but nothing is dropped without a trace.

CREATE TABLE dropped_claims (
    packet_id INTEGER NOT NULL,
    user_id   TEXT    NOT NULL,
    cents     INTEGER NOT NULL,
    reason    TEXT    NOT NULL,
    at_ms     INTEGER NOT NULL,
    PRIMARY KEY (packet_id, user_id)
) STRICT;

CREATE TRIGGER dropped_claims_update BEFORE UPDATE ON dropped_claims
BEGIN
    SELECT RAISE(ABORT, 'a dropped claim is never changed');
END;

CREATE TRIGGER dropped_claims_delete BEFORE DELETE ON dropped_claims
BEGIN
    SELECT RAISE(ABORT, 'a dropped claim is never deleted');
END;
