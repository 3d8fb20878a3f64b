//! Sponsors, deposits, balances, statements.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{AdminClient, AdminError, CALL};
use crate::rain::{Cents, PacketId, RainId};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Like `sponsor:demo`.
    pub name: String,
    pub balance_cents: Cents,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountsPage {
    pub accounts: Vec<Account>,
    /// Where the next page starts; `None` on the last one.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// One movement of money, as its account sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatementLine {
    pub at_ms: i64,
    pub kind: String,
    /// Above zero: came in. Below: went out.
    pub cents: Cents,
    /// Where it came from or went to.
    pub other: String,
    #[serde(default)]
    pub rain_id: Option<RainId>,
    #[serde(default)]
    pub packet_id: Option<PacketId>,
    /// The reason of a discard, for example.
    #[serde(default)]
    pub note: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatementPage {
    pub lines: Vec<StatementLine>,
    /// Where the next page starts; `None` on the last one.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

impl AdminClient {
    /// Makes the account `sponsor:<sponsor>`, or finds it.
    pub async fn create_sponsor(&self, sponsor: &str) -> Result<Account, AdminError> {
        self.post(&["accounts"], json!({ "sponsor": sponsor }))
            .await
    }

    /// Moves `cents` from outside onto a sponsor's account. The same `key` deposits once, however often it is sent.
    pub async fn deposit(
        &self,
        sponsor: &str,
        cents: Cents,
        key: &str,
    ) -> Result<Account, AdminError> {
        let path = ["accounts", sponsor, "deposits"];
        self.write(&path, json!({ "cents": cents }), Some(key), CALL)
            .await
    }

    /// By full name: `sponsor:demo`, `user:anna`, `escrow:7`.
    pub async fn account(&self, name: &str) -> Result<Account, AdminError> {
        self.get(&["accounts", name], &[]).await
    }

    /// One page of accounts by name, from `cursor` on; those whose names begin with `prefix`. `limit`: 1 to 1000.
    pub async fn accounts(
        &self,
        prefix: &str,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<AccountsPage, AdminError> {
        let mut query = vec![("prefix", prefix.to_owned()), ("limit", limit.to_string())];
        query.extend(cursor.map(|cursor| ("cursor", cursor.to_owned())));
        self.get(&["accounts"], &query).await
    }

    /// One page of an account's movements, newest first, from `cursor` on. `limit`: 1 to 1000.
    pub async fn statement(
        &self,
        name: &str,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<StatementPage, AdminError> {
        let mut query = vec![("limit", limit.to_string())];
        query.extend(cursor.map(|cursor| ("cursor", cursor.to_owned())));
        self.get(&["accounts", name, "statement"], &query).await
    }
}
