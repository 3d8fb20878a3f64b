-- Rains whose grabs must carry a key. The key itself follows from the seed, so it is not kept.
ALTER TABLE rains ADD COLUMN key_required INTEGER NOT NULL DEFAULT 0 CHECK (key_required IN (0, 1));
