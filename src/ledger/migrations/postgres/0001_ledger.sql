-- The ledger: accounts, the two journals that alone move money between them, and the rains.
--
-- Every journal row takes a positive amount from one account and gives it to another, and only the triggers of the journals change a
-- balance: no row can be unbalanced, so the sum over all accounts is zero after every statement, whoever wrote it.
--
-- The triggers work once per statement, not per row. They touch accounts in descending order of name: users, sponsors, escrows,
-- deposits. One order for everybody means no deadlock, and this one locks last what many want at once (the escrow of a hot rain).

CREATE TABLE accounts (
    name          TEXT COLLATE "C" NOT NULL PRIMARY KEY, -- deposits, sponsor:<name>, escrow:<rain>, user:<user>
    balance_cents BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT balance_not_below_zero CHECK (balance_cents >= 0 OR name = 'deposits')
) WITH (fillfactor = 75); -- room for a balance to change within its page, without touching the index

CREATE TABLE credits (
    packet_id BIGINT NOT NULL PRIMARY KEY CHECK (packet_id >= 4294967296), -- rain id << 32 | index
    user_id   TEXT COLLATE "C" NOT NULL CHECK (user_id <> ''),
    cents     BIGINT NOT NULL CHECK (cents > 0),
    at_ms     BIGINT NOT NULL
);

CREATE INDEX credits_by_user ON credits (user_id); -- "where is my packet?"

CREATE TABLE entries (
    id           BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key          TEXT COLLATE "C" NOT NULL UNIQUE, -- deposit:<key>, fund:<rain>, refund:<rain>, discard:<packet>
    kind         TEXT NOT NULL,
    from_account TEXT COLLATE "C" NOT NULL,
    to_account   TEXT COLLATE "C" NOT NULL CHECK (to_account <> from_account),
    cents        BIGINT NOT NULL CHECK (cents > 0),
    rain_id      BIGINT,
    packet_id    BIGINT UNIQUE,
    at_ms        BIGINT NOT NULL,
    note         TEXT,
    CHECK ((kind = 'discard') = (packet_id IS NOT NULL))
);

CREATE INDEX entries_by_from_account ON entries (from_account);
CREATE INDEX entries_by_to_account ON entries (to_account);
CREATE INDEX entries_by_rain ON entries (rain_id);

CREATE TABLE rains (
    id              BIGINT GENERATED ALWAYS AS IDENTITY (MAXVALUE 2147483647) PRIMARY KEY,
    request_key     TEXT COLLATE "C" UNIQUE, -- the creation's idempotency key
    request         TEXT   NOT NULL,         -- what was asked for, to tell a repeat from another request with the same key
    title           TEXT   NOT NULL,
    room            TEXT   NOT NULL,
    sponsor         TEXT   NOT NULL,
    split           TEXT   NOT NULL,         -- JSON
    seed            BYTEA  NOT NULL CHECK (length(seed) = 32),
    salts           TEXT   NOT NULL,         -- JSON, one number per bucket
    opens_at_ms     BIGINT,
    duration_ms     BIGINT NOT NULL CHECK (duration_ms > 0),
    durability      TEXT   NOT NULL,
    refund_after_ms BIGINT NOT NULL CHECK (refund_after_ms >= 0),
    state           TEXT   NOT NULL,
    loaded          BIGINT NOT NULL DEFAULT 0 CHECK (loaded IN (0, 1)),   -- every packet has been in its pool
    sold_out        BIGINT NOT NULL DEFAULT 0 CHECK (sold_out IN (0, 1)), -- every pool was seen empty at one moment
    version         BIGINT NOT NULL,
    created_at_ms   BIGINT NOT NULL
);

CREATE INDEX rains_unfinished ON rains (id) WHERE state <> 'finished';

-- Refuses whatever it is attached to; its argument is the reason.
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'restrict_violation';
END $$;

-- Accounts: opened empty, never closed, changed only by a journal (whose triggers run at depth 1 and deeper).

CREATE TRIGGER accounts_open BEFORE INSERT ON accounts
FOR EACH ROW WHEN (NEW.balance_cents <> 0 AND pg_trigger_depth() = 0)
EXECUTE FUNCTION refuse('an account is opened with a balance of zero');

CREATE TRIGGER accounts_change BEFORE UPDATE ON accounts
FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)
EXECUTE FUNCTION refuse('a balance changes only by a row in a journal');

CREATE TRIGGER accounts_delete BEFORE DELETE OR TRUNCATE ON accounts
FOR EACH STATEMENT EXECUTE FUNCTION refuse('an account is never deleted');

-- Credits: from the rain's escrow to the user. The packet id is the key, so a packet pays once.

CREATE FUNCTION credits_move_money() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    part record;
BEGIN
    INSERT INTO accounts AS account (name, balance_cents)
    SELECT 'user:' || user_id, SUM(cents)::bigint FROM fresh GROUP BY user_id ORDER BY user_id DESC
    ON CONFLICT (name) DO UPDATE SET balance_cents = account.balance_cents + excluded.balance_cents;

    FOR part IN
        SELECT 'escrow:' || (packet_id >> 32) AS account, SUM(cents)::bigint AS cents FROM fresh
        GROUP BY packet_id >> 32 ORDER BY ('escrow:' || (packet_id >> 32)) COLLATE "C" DESC
    LOOP
        UPDATE accounts SET balance_cents = balance_cents - part.cents WHERE name = part.account;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'account % does not exist', part.account USING ERRCODE = 'foreign_key_violation';
        END IF;
    END LOOP;

    -- Only now that the escrow is locked: a discard locks it too, then looks for a credit. One of the two sees the other.
    IF EXISTS (SELECT 1 FROM fresh JOIN entries USING (packet_id)) THEN
        RAISE EXCEPTION 'the packet has been discarded' USING ERRCODE = 'unique_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER credits_move_money AFTER INSERT ON credits
REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION credits_move_money();

CREATE TRIGGER credits_update BEFORE UPDATE ON credits
FOR EACH STATEMENT EXECUTE FUNCTION refuse('a journal row is never changed');

CREATE TRIGGER credits_delete BEFORE DELETE OR TRUNCATE ON credits
FOR EACH STATEMENT EXECUTE FUNCTION refuse('a journal row is never deleted');

-- Entries: everything else that moves money.

CREATE FUNCTION entries_move_money() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    part record;
BEGIN
    FOR part IN
        SELECT account, SUM(cents)::bigint AS cents
        FROM (SELECT from_account AS account, -cents AS cents FROM fresh
              UNION ALL
              SELECT to_account, cents FROM fresh) AS side
        GROUP BY account ORDER BY account DESC
    LOOP
        UPDATE accounts SET balance_cents = balance_cents + part.cents WHERE name = part.account;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'account % does not exist', part.account USING ERRCODE = 'foreign_key_violation';
        END IF;
    END LOOP;

    IF EXISTS (SELECT 1 FROM fresh JOIN credits USING (packet_id)) THEN
        RAISE EXCEPTION 'the packet has been credited' USING ERRCODE = 'unique_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER entries_move_money AFTER INSERT ON entries
REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION entries_move_money();

CREATE TRIGGER entries_update BEFORE UPDATE ON entries
FOR EACH STATEMENT EXECUTE FUNCTION refuse('a journal row is never changed');

CREATE TRIGGER entries_delete BEFORE DELETE OR TRUNCATE ON entries
FOR EACH STATEMENT EXECUTE FUNCTION refuse('a journal row is never deleted');

-- A deleted rain would free its id, and with it the ids of packets that have been paid.

CREATE TRIGGER rains_delete BEFORE DELETE OR TRUNCATE ON rains
FOR EACH STATEMENT EXECUTE FUNCTION refuse('a rain is never deleted');

INSERT INTO accounts (name) VALUES ('deposits');

-- Claims that a person gave up although their packet was paid to another claim: no money moves, but nothing is dropped without a trace.

CREATE TABLE dropped_claims (
    packet_id BIGINT NOT NULL,
    user_id   TEXT COLLATE "C" NOT NULL,
    cents     BIGINT NOT NULL,
    reason    TEXT   NOT NULL,
    at_ms     BIGINT NOT NULL,
    PRIMARY KEY (packet_id, user_id)
);

CREATE TRIGGER dropped_claims_update BEFORE UPDATE ON dropped_claims
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('a dropped claim is never changed');

CREATE TRIGGER dropped_claims_delete BEFORE DELETE OR TRUNCATE ON dropped_claims
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('a dropped claim is never deleted');
