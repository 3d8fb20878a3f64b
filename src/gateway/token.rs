//! Session tokens: JWTs made by the quiz's own login service.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

use crate::rain::UserId;
use crate::wire::CloseCode;

/// Clocks of login service and gateway may differ by this much, seconds.
const LEEWAY_SECONDS: u64 = 5;

/// The word in a token's scope that makes its session an edge session.
pub const EDGE_SCOPE: &str = "edge";

#[derive(Serialize, Deserialize)]
struct Payload {
    sub: String,
    /// Seconds since 1970.
    exp: u64,
    /// Words between blanks.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    scope: String,
}

/// Who a token speaks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub user: UserId,
    /// `user` is a trusted server that grabs for others.
    pub edge: bool,
}

/// The keys that tokens may be signed with, by `kid`.
pub struct TokenKeys {
    keys: HashMap<String, DecodingKey>,
    validation: Validation,
}

/// Why a token was not accepted.
#[derive(Debug, PartialEq, Eq)]
pub struct TokenError {
    pub code: CloseCode,
    pub reason: String,
}

impl TokenKeys {
    pub fn hs256(kid: &str, secret: &[u8]) -> TokenKeys {
        let mut validation = Validation::new(Algorithm::HS256);
        validation.leeway = LEEWAY_SECONDS;
        validation.validate_aud = false;
        TokenKeys {
            keys: HashMap::from([(kid.to_owned(), DecodingKey::from_secret(secret))]),
            validation,
        }
    }

    /// Who a token speaks for.
    pub fn verify(&self, token: &str) -> Result<Identity, TokenError> {
        let refused = |code, reason: String| TokenError { code, reason };
        if token.is_empty() {
            return Err(refused(
                CloseCode::TokenMissing,
                "the Hello has no token".into(),
            ));
        }
        let header = jsonwebtoken::decode_header(token).map_err(|error| {
            refused(
                CloseCode::TokenInvalid,
                format!("the token is not a JWT: {error}"),
            )
        })?;
        let kid = header.kid.unwrap_or_default();
        let Some(key) = self.keys.get(&kid) else {
            let shown: String = kid.chars().take(40).collect();
            return Err(refused(
                CloseCode::TokenInvalid,
                format!("the token's kid {shown:?} names no key of ours"),
            ));
        };
        let payload =
            jsonwebtoken::decode::<Payload>(token, key, &self.validation).map_err(|error| {
                match error.kind() {
                    ErrorKind::ExpiredSignature => {
                        refused(CloseCode::TokenExpired, "the token has expired".into())
                    }
                    ErrorKind::InvalidSignature => refused(
                        CloseCode::TokenInvalid,
                        "the token's signature is wrong".into(),
                    ),
                    _ => refused(
                        CloseCode::TokenInvalid,
                        format!("the token is not accepted: {error}"),
                    ),
                }
            })?;
        let user = UserId::new(&payload.claims.sub)
            .map_err(|error| refused(CloseCode::TokenInvalid, error.to_string()))?;
        let edge = payload
            .claims
            .scope
            .split_ascii_whitespace()
            .any(|word| word == EDGE_SCOPE);
        Ok(Identity { user, edge })
    }
}

/// Makes an HS256 token for `user` that is valid for `lifetime`: for the command line, tests and trying things out.
pub fn issue(user: &UserId, kid: &str, secret: &[u8], lifetime: Duration) -> String {
    issue_scoped(user, "", kid, secret, lifetime)
}

/// The same with a scope, like [`EDGE_SCOPE`].
pub fn issue_scoped(
    user: &UserId,
    scope: &str,
    kid: &str,
    secret: &[u8],
    lifetime: Duration,
) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let payload = Payload {
        sub: user.to_string(),
        exp: (now + lifetime).as_secs(),
        scope: scope.to_owned(),
    };
    let header = Header {
        kid: Some(kid.to_owned()),
        ..Header::new(Algorithm::HS256)
    };
    jsonwebtoken::encode(&header, &payload, &EncodingKey::from_secret(secret))
        .expect("HS256 signs any payload")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
    const HOUR: Duration = Duration::from_secs(3_600);

    fn code(token: &str) -> CloseCode {
        TokenKeys::hs256("default", SECRET)
            .verify(token)
            .unwrap_err()
            .code
    }

    #[test]
    fn a_token_speaks_for_its_user() {
        let anna = UserId::new("anna").unwrap();
        let keys = TokenKeys::hs256("default", SECRET);
        for (scope, edge) in [
            ("", false),
            ("edge", true),
            ("openid edge", true),
            ("edges", false),
            ("no-edge", false),
        ] {
            let token = issue_scoped(&anna, scope, "default", SECRET, HOUR);
            let identity = Identity {
                user: anna.clone(),
                edge,
            };
            assert_eq!(keys.verify(&token), Ok(identity), "{scope}");
        }
    }

    #[test]
    fn missing_forged_foreign_and_garbage_tokens_are_told_apart() {
        let anna = UserId::new("anna").unwrap();
        assert_eq!(code(""), CloseCode::TokenMissing);
        assert_eq!(code("garbage"), CloseCode::TokenInvalid);
        assert_eq!(
            code(&issue(&anna, "default", b"another secret", HOUR)),
            CloseCode::TokenInvalid
        );
        assert_eq!(
            code(&issue(&anna, "other", SECRET, HOUR)),
            CloseCode::TokenInvalid
        );
        let old = Payload {
            sub: "anna".into(),
            exp: 1_000_000_000,
            scope: String::new(),
        };
        let header = Header {
            kid: Some("default".into()),
            ..Header::new(Algorithm::HS256)
        };
        let old = jsonwebtoken::encode(&header, &old, &EncodingKey::from_secret(SECRET)).unwrap();
        assert_eq!(code(&old), CloseCode::TokenExpired);
        // "alg": "none" and another algorithm with the same key are forgeries.
        assert_eq!(
            code(
                "eyJhbGciOiJub25lIiwia2lkIjoiZGVmYXVsdCJ9.eyJzdWIiOiJhbm5hIiwiZXhwIjo5OTk5OTk5OTk5fQ."
            ),
            CloseCode::TokenInvalid
        );
        let header = Header {
            kid: Some("default".into()),
            ..Header::new(Algorithm::HS512)
        };
        let payload = Payload {
            sub: "anna".into(),
            exp: 9_999_999_999,
            scope: String::new(),
        };
        let other =
            jsonwebtoken::encode(&header, &payload, &EncodingKey::from_secret(SECRET)).unwrap();
        assert_eq!(code(&other), CloseCode::TokenInvalid);
        let bad_user = Payload {
            sub: "two words".into(),
            exp: 9_999_999_999,
            scope: String::new(),
        };
        let header = Header {
            kid: Some("default".into()),
            ..Header::new(Algorithm::HS256)
        };
        let token =
            jsonwebtoken::encode(&header, &bad_user, &EncodingKey::from_secret(SECRET)).unwrap();
        assert_eq!(code(&token), CloseCode::TokenInvalid);
    }
}
