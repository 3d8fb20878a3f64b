//! Keys of the admin API as recorded. What a key may do and how its secret is found is the admin's business.

use super::Ledger;
use super::db::{Row, Tx, Value};
use super::error::LedgerError;

/// Keys that may be in use at one time: every admin process holds them all in memory, about 300 bytes each.
pub const API_KEYS_MAX: u32 = 1_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    pub id: String,
    pub name: String,
    /// Role names with a comma between them.
    pub roles: String,
    /// Counts the rotations, from 1.
    pub generation: u32,
    /// SHA-256 of this generation's secret, hex.
    pub secret_hash: String,
    /// The generation before is good until then, ms since 1970.
    pub overlap_until_ms: i64,
    pub created_at_ms: i64,
    pub expires_at_ms: Option<i64>,
    pub revoked_at_ms: Option<i64>,
    pub last_used_at_ms: Option<i64>,
}

/// A rotation as it is asked for.
pub struct Rotation<'a> {
    /// The generation that the new secret was made for.
    pub generation: u32,
    pub secret_hash: &'a str,
    pub overlap_until_ms: i64,
    /// The caller's idempotency key: a repeat finds the rotation done.
    pub request_key: &'a str,
}

impl Rotation<'_> {
    /// For `$1` to `$5`: whose it is, then the fields as they stand.
    pub(super) fn values(&self, id: &str) -> Vec<Value> {
        vec![
            id.into(),
            i64::from(self.generation).into(),
            self.secret_hash.into(),
            self.overlap_until_ms.into(),
            self.request_key.into(),
        ]
    }
}

macro_rules! select_keys {
    ($rest:literal) => {
        concat!(
            "SELECT id, name, roles, generation, secret_hash, overlap_until_ms, created_at_ms, expires_at_ms, revoked_at_ms,
                    last_used_at_ms
             FROM api_keys ",
            $rest
        )
    };
}

impl ApiKey {
    fn read(row: &Row) -> Result<ApiKey, LedgerError> {
        Ok(ApiKey {
            id: row.text(0)?,
            name: row.text(1)?,
            roles: row.text(2)?,
            generation: row.i64(3)? as u32,
            secret_hash: row.text(4)?,
            overlap_until_ms: row.i64(5)?,
            created_at_ms: row.i64(6)?,
            expires_at_ms: row.i64_or_null(7)?,
            revoked_at_ms: row.i64_or_null(8)?,
            last_used_at_ms: row.i64_or_null(9)?,
        })
    }
}

impl Ledger {
    /// Records a new key, or finds the one with its id as it is by now. Refused when [`API_KEYS_MAX`] keys are in use.
    pub async fn create_api_key(&self, new: &ApiKey) -> Result<ApiKey, LedgerError> {
        let mut tx = self.db.begin("creating a key").await?;
        let made = tx.create_api_key(new).await;
        match made {
            Ok(key) => tx.commit().await.map(|()| key),
            Err(error) => {
                tx.roll_back().await;
                Err(error)
            }
        }
    }

    /// Takes a key to `rotation.generation` if it is one behind. A repeat changes nothing.
    pub async fn rotate_api_key(
        &self,
        id: &str,
        rotation: &Rotation<'_>,
    ) -> Result<ApiKey, LedgerError> {
        let sql = "UPDATE api_keys SET generation = $2, secret_hash = $3, overlap_until_ms = $4, rotation_key = $5
                   WHERE id = $1 AND generation = $2 - 1 AND rotation_key <> $5 AND revoked_at_ms IS NULL";
        self.db
            .write("rotating a key", sql, rotation.values(id))
            .await?;
        self.api_key(id).await
    }

    /// For good. A key that is revoked stays as it is.
    pub async fn revoke_api_key(&self, id: &str, at_ms: i64) -> Result<ApiKey, LedgerError> {
        let sql = "UPDATE api_keys SET revoked_at_ms = $2 WHERE id = $1 AND revoked_at_ms IS NULL";
        let values = vec![id.into(), at_ms.into()];
        self.db.write("revoking a key", sql, values).await?;
        self.api_key(id).await
    }

    /// Notes that a key was used.
    pub async fn used_api_key(&self, id: &str, at_ms: i64) -> Result<(), LedgerError> {
        let sql = "UPDATE api_keys SET last_used_at_ms = $2 WHERE id = $1 AND COALESCE(last_used_at_ms, 0) < $2";
        let values = vec![id.into(), at_ms.into()];
        self.db
            .write("noting the use of a key", sql, values)
            .await?;
        Ok(())
    }

    pub async fn api_key(&self, id: &str) -> Result<ApiKey, LedgerError> {
        let sql = select_keys!("WHERE id = $1");
        let row = self.db.row("reading a key", sql, vec![id.into()]).await?;
        row.as_ref()
            .map(ApiKey::read)
            .transpose()?
            .ok_or_else(|| LedgerError::NoApiKey(id.to_owned()))
    }

    /// By id, after the one named `after`; those that are revoked too.
    pub async fn api_keys(&self, after: &str, limit: u32) -> Result<Vec<ApiKey>, LedgerError> {
        let sql = select_keys!("WHERE id > $1 ORDER BY id LIMIT $2");
        let values = vec![after.into(), super::page_rows(limit).into()];
        let rows = self.db.rows("listing keys", sql, values).await?;
        rows.iter().map(ApiKey::read).collect()
    }

    /// Every key that is not revoked or was revoked or expired after `since_ms`: what a process has to know to say who asks. Those that are
    /// good come first: however many were revoked since, none of them is left out.
    pub async fn known_api_keys(
        &self,
        now_ms: i64,
        since_ms: i64,
    ) -> Result<Vec<ApiKey>, LedgerError> {
        let sql = select_keys!(
            "WHERE COALESCE(revoked_at_ms, $1) >= $1 AND COALESCE(expires_at_ms, $1) >= $1
             ORDER BY CASE WHEN revoked_at_ms IS NULL AND COALESCE(expires_at_ms, $2) >= $2 THEN 0 ELSE 1 END, created_at_ms DESC
             LIMIT 2000"
        );
        let rows = self
            .db
            .rows(
                "reading the keys",
                sql,
                vec![since_ms.into(), now_ms.into()],
            )
            .await?;
        rows.iter().map(ApiKey::read).collect()
    }
}

impl Tx {
    async fn create_api_key(&mut self, new: &ApiKey) -> Result<ApiKey, LedgerError> {
        let one = select_keys!("WHERE id = $1");
        if let Some(row) = self.row(one, vec![new.id.as_str().into()]).await? {
            return ApiKey::read(&row);
        }
        let sql = "SELECT COUNT(*) FROM api_keys WHERE revoked_at_ms IS NULL AND COALESCE(expires_at_ms, $1) >= $1";
        let row = self.row(sql, vec![new.created_at_ms.into()]).await?;
        let in_use = row.as_ref().map_or(Ok(0), |row| row.i64(0))?;
        if in_use >= i64::from(API_KEYS_MAX) {
            return Err(LedgerError::ApiKeys);
        }
        let sql = "INSERT INTO api_keys (id, name, roles, generation, secret_hash, created_at_ms, expires_at_ms)
                   VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO NOTHING";
        let values = vec![
            new.id.as_str().into(),
            new.name.as_str().into(),
            new.roles.as_str().into(),
            i64::from(new.generation).into(),
            new.secret_hash.as_str().into(),
            new.created_at_ms.into(),
            new.expires_at_ms.into(),
        ];
        self.execute(sql, values).await?;
        let row = self.row(one, vec![new.id.as_str().into()]).await?;
        row.as_ref()
            .map(ApiKey::read)
            .transpose()?
            .ok_or_else(|| LedgerError::NoApiKey(new.id.clone()))
    }
}
