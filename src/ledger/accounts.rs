use std::fmt;
use std::str::FromStr;

use crate::rain::{Cents, RainId, UserId};

use super::db::{Row, Tx};
use super::entry::{Booking, Entry, Kind, Recorded};
use super::error::LedgerError;
use super::{KEY_BYTES_MAX, Ledger, SPONSOR_NAME_BYTES_MAX, page_rows};

/// The name of an account, as text `deposits`, `sponsor:<name>`, `escrow:<rain id>` or `user:<user id>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AccountName {
    /// The outside world: what was paid in, as a negative balance.
    Deposits,
    Sponsor(String),
    Escrow(RainId),
    User(UserId),
}

impl AccountName {
    pub fn sponsor(name: &str) -> Result<AccountName, LedgerError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._@:+=/-".contains(&b);
        if name.is_empty() || name.len() > SPONSOR_NAME_BYTES_MAX || !name.bytes().all(allowed) {
            let shown = name.chars().take(SPONSOR_NAME_BYTES_MAX + 1).collect();
            return Err(LedgerError::SponsorName(shown));
        }
        Ok(AccountName::Sponsor(name.to_owned()))
    }
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccountName::Deposits => f.write_str("deposits"),
            AccountName::Sponsor(name) => write!(f, "sponsor:{name}"),
            AccountName::Escrow(rain) => write!(f, "escrow:{rain}"),
            AccountName::User(user) => write!(f, "user:{user}"),
        }
    }
}

impl FromStr for AccountName {
    type Err = LedgerError;
    fn from_str(text: &str) -> Result<AccountName, LedgerError> {
        let fault = || LedgerError::AccountName(text.chars().take(100).collect());
        match text.split_once(':') {
            None if text == "deposits" => Ok(AccountName::Deposits),
            Some(("sponsor", name)) => AccountName::sponsor(name).map_err(|_| fault()),
            Some(("escrow", rain)) => rain.parse().map(AccountName::Escrow).map_err(|_| fault()),
            Some(("user", user)) => UserId::new(user)
                .map(AccountName::User)
                .map_err(|_| fault()),
            Some(_) | None => Err(fault()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: AccountName,
    pub balance: Cents,
}

impl Account {
    pub(super) fn read(row: &Row) -> Result<Account, LedgerError> {
        Ok(Account {
            name: row.parse(0)?,
            balance: Cents(row.i64(1)?),
        })
    }
}

impl Ledger {
    /// Opens a sponsor's account; one that is open stays as it is.
    pub async fn open_sponsor(&self, name: &str) -> Result<(), LedgerError> {
        self.open_account(AccountName::sponsor(name)?).await
    }

    /// Opens a user's account before the first credit, for ledgers whose credits do not (`LedgerSettings::create_user_accounts`).
    pub async fn open_user(&self, user: &UserId) -> Result<(), LedgerError> {
        self.open_account(AccountName::User(user.clone())).await
    }

    async fn open_account(&self, name: AccountName) -> Result<(), LedgerError> {
        let mut tx = self.db.begin("opening an account").await?;
        tx.open_account(&name).await?;
        tx.commit().await
    }

    /// Records money that the sponsor has paid in. `key` is the caller's own name for this deposit, 1 to 128 printable ASCII
    /// characters: the same key again changes nothing.
    pub async fn deposit(
        &self,
        sponsor: &str,
        cents: Cents,
        key: &str,
        at_ms: i64,
    ) -> Result<Booking, LedgerError> {
        let account = AccountName::sponsor(sponsor)?;
        if cents <= Cents::ZERO {
            return Err(LedgerError::NotPositive {
                what: "deposit",
                cents,
            });
        }
        let entry = Entry {
            key: format!("deposit:{}", checked_key(key)?),
            kind: Kind::Deposit,
            from: AccountName::Deposits,
            to: account.clone(),
            cents,
            rain: None,
            packet: None,
            at_ms,
            note: None,
        };
        let mut tx = self.db.begin("recording a deposit").await?;
        match tx.record(&entry).await {
            Ok(Recorded::New) => tx.commit().await.map(|()| Booking::Done),
            Ok(Recorded::Earlier(earlier)) => {
                tx.roll_back().await;
                Ok(earlier.compared_with(&entry))
            }
            Err(refused @ LedgerError::Refused { .. }) => {
                tx.roll_back().await;
                match self.account(&account).await? {
                    None => Err(LedgerError::NoSponsor(sponsor.to_owned())),
                    Some(_) => Err(refused),
                }
            }
            Err(other) => Err(other),
        }
    }

    pub async fn account(&self, name: &AccountName) -> Result<Option<Account>, LedgerError> {
        let sql = "SELECT name, balance_cents FROM accounts WHERE name = $1";
        let row = self
            .db
            .row("reading an account", sql, vec![name.to_string().into()])
            .await?;
        row.as_ref().map(Account::read).transpose()
    }

    /// Accounts whose names begin with `prefix` (`sponsor:`, `user:an`, or nothing for all), by name, after the one named `after`.
    pub async fn accounts(
        &self,
        prefix: &str,
        after: Option<&AccountName>,
        limit: u32,
    ) -> Result<Vec<Account>, LedgerError> {
        let after = after.map(AccountName::to_string).unwrap_or_default();
        let sql = "SELECT name, balance_cents FROM accounts
                   WHERE name >= $1 AND name < $2 AND name > $3
                   ORDER BY name LIMIT $4";
        // Names are ASCII, so the first text after all that begin with a prefix is the prefix and a character beyond ASCII.
        let beyond = format!("{prefix}\u{10ffff}");
        let values = vec![
            prefix.into(),
            beyond.into(),
            after.into(),
            page_rows(limit).into(),
        ];
        let rows = self.db.rows("listing accounts", sql, values).await?;
        rows.iter().map(Account::read).collect()
    }
}

impl Tx {
    pub(super) async fn open_account(&mut self, name: &AccountName) -> Result<(), LedgerError> {
        let sql = "INSERT INTO accounts (name) VALUES ($1) ON CONFLICT (name) DO NOTHING";
        self.execute(sql, vec![name.to_string().into()])
            .await
            .map(drop)
    }
}

pub(super) fn checked_key(key: &str) -> Result<&str, LedgerError> {
    let printable = key.bytes().all(|b| (b' '..=b'~').contains(&b));
    if key.is_empty() || key.len() > KEY_BYTES_MAX || !printable {
        return Err(LedgerError::Key(
            key.chars().take(KEY_BYTES_MAX + 1).collect(),
        ));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_names_read_back_as_written() {
        for text in ["deposits", "sponsor:acme", "escrow:7", "user:app:anna"] {
            assert_eq!(text.parse::<AccountName>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "deposits:",
            "sponsor:",
            "sponsor:two words",
            "escrow:0",
            "user:",
            "other:x",
        ] {
            assert!(text.parse::<AccountName>().is_err(), "{text}");
        }
    }
}
