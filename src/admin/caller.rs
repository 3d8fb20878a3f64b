//! Who asks, and what that allows.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A part of the API that permissions name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Module {
    /// Rains, winners, how claims flow.
    Rains,
    /// Balances and deposits.
    Accounts,
    /// Claims that wait for a person.
    DeadLetters,
    /// Verdicts, repairs, the log of who did what.
    Audits,
    /// Keys of this API.
    Keys,
    Webhooks,
}

impl Module {
    pub const ALL: [Module; 6] = [
        Module::Rains,
        Module::Accounts,
        Module::DeadLetters,
        Module::Audits,
        Module::Keys,
        Module::Webhooks,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Module::Rains => "rains",
            Module::Accounts => "accounts",
            Module::DeadLetters => "dead_letters",
            Module::Audits => "audits",
            Module::Keys => "keys",
            Module::Webhooks => "webhooks",
        }
    }
}

/// What somebody wants to do in a module. Who may write may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    Read,
    Write,
}

impl Access {
    pub fn as_str(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
        }
    }
}

/// What a key is for. Its permissions follow from its roles, those of all of them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Sees everything but keys.
    Viewer,
    /// Prepares and runs rains, and puts right what goes wrong.
    Operator,
    /// Moves money: deposits, dead letters.
    Finance,
    /// May do everything, keys included.
    Admin,
}

impl Role {
    pub const ALL: [Role; 4] = [Role::Viewer, Role::Operator, Role::Finance, Role::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Finance => "finance",
            Role::Admin => "admin",
        }
    }

    /// The most that this role may do in a module; `None`: not even look.
    pub fn access(self, module: Module) -> Option<Access> {
        use Access::{Read, Write};
        match (self, module) {
            (Role::Admin, _) => Some(Write),
            (_, Module::Keys) => None,
            (
                Role::Operator,
                Module::Rains | Module::DeadLetters | Module::Audits | Module::Webhooks,
            ) => Some(Write),
            (Role::Finance, Module::Accounts | Module::DeadLetters) => Some(Write),
            (Role::Operator | Role::Finance | Role::Viewer, _) => Some(Read),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("role \"{0}\" is not viewer, operator, finance or admin")]
pub struct ParseRoleError(String);

impl FromStr for Role {
    type Err = ParseRoleError;
    fn from_str(text: &str) -> Result<Role, ParseRoleError> {
        let found = Role::ALL.into_iter().find(|role| role.as_str() == text);
        found.ok_or_else(|| ParseRoleError(text.to_owned()))
    }
}

/// A request's author, in its extensions once it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Of the key.
    pub id: String,
    /// Of the key, for people.
    pub name: String,
    pub roles: Vec<Role>,
}

impl Caller {
    pub fn may(&self, module: Module, access: Access) -> bool {
        self.roles
            .iter()
            .any(|role| role.access(module) >= Some(access))
    }

    /// All that the caller may do, like `rains:write`; who may write may read.
    pub fn permissions(&self) -> Vec<String> {
        let most = |module: Module| {
            let access = self.roles.iter().filter_map(|role| role.access(module));
            Some(format!("{}:{}", module.as_str(), access.max()?.as_str()))
        };
        Module::ALL.into_iter().filter_map(most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(roles: &[Role]) -> Caller {
        Caller {
            id: "k1".into(),
            name: "test".into(),
            roles: roles.to_vec(),
        }
    }

    /// The table of the README.
    #[test]
    fn each_role_may_do_this() {
        let viewer = [
            "rains:read",
            "accounts:read",
            "dead_letters:read",
            "audits:read",
            "webhooks:read",
        ];
        assert_eq!(caller(&[Role::Viewer]).permissions(), viewer);
        let operator = [
            "rains:write",
            "accounts:read",
            "dead_letters:write",
            "audits:write",
            "webhooks:write",
        ];
        assert_eq!(caller(&[Role::Operator]).permissions(), operator);
        let finance = [
            "rains:read",
            "accounts:write",
            "dead_letters:write",
            "audits:read",
            "webhooks:read",
        ];
        assert_eq!(caller(&[Role::Finance]).permissions(), finance);
        let both = caller(&[Role::Finance, Role::Operator]);
        assert!(
            both.may(Module::Rains, Access::Write) && both.may(Module::Accounts, Access::Write)
        );
        assert!(!both.may(Module::Keys, Access::Read));
        assert!(caller(&[]).permissions().is_empty());
        let all = caller(&[Role::Admin]).permissions();
        assert_eq!(all.len(), 6);
        assert!(all.iter().all(|permission| permission.ends_with(":write")));
    }
}
