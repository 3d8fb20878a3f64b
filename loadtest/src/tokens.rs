use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hongbao::gateway::token::EDGE_SCOPE;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::Serialize;

use crate::LoadError;

/// Longer than any run.
const LIFETIME: Duration = Duration::from_secs(24 * 3_600);

/// Signs session tokens (JWT, HS256) as the quiz's login service would.
pub struct Signer {
    key: EncodingKey,
    header: Header,
    expires_s: u64,
}

impl Signer {
    /// The secret as hex text in a file; `kid` is what the gateway calls it.
    pub fn from_file(path: &Path, kid: &str) -> Result<Signer, LoadError> {
        let text = read_text(path)?;
        let secret = hex::decode(&text).ok().filter(|secret| !secret.is_empty());
        let secret = secret.ok_or_else(|| {
            let path = path.display();
            LoadError::Usage(format!("{path} does not hold a secret as hex text"))
        })?;
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some(kid.to_owned());
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Signer {
            key: EncodingKey::from_secret(&secret),
            header,
            expires_s: (now + LIFETIME).as_secs(),
        })
    }

    pub fn token(&self, user: &str) -> String {
        self.sign(user, None)
    }

    /// For a trusted server that grabs for many users.
    pub fn edge_token(&self, name: &str) -> String {
        self.sign(name, Some(EDGE_SCOPE))
    }

    fn sign(&self, sub: &str, scope: Option<&str>) -> String {
        #[derive(Serialize)]
        struct Claims<'a> {
            sub: &'a str,
            exp: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            scope: Option<&'a str>,
        }
        let claims = Claims {
            sub,
            exp: self.expires_s,
            scope,
        };
        jsonwebtoken::encode(&self.header, &claims, &self.key)
            .expect("HS256 signs any serializable claims")
    }
}

/// A file of one line.
pub fn read_text(path: &Path) -> Result<String, LoadError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(source) => Err(LoadError::Unreadable {
            path: path.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::{DecodingKey, Validation};

    #[test]
    fn a_token_names_its_user_its_key_and_its_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "00ff10\n").unwrap();
        let signer = Signer::from_file(file.path(), "k1").unwrap();
        let token = signer.token("anna");
        assert_eq!(
            jsonwebtoken::decode_header(&token).unwrap().kid.as_deref(),
            Some("k1")
        );
        let key = DecodingKey::from_secret(&[0x00, 0xff, 0x10]);
        let read = |token: String| {
            let rules = Validation::new(Algorithm::HS256);
            let read = jsonwebtoken::decode::<serde_json::Value>(token, &key, &rules);
            read.unwrap().claims
        };
        let claims = read(token);
        assert_eq!(claims["sub"], "anna");
        assert!(claims.get("scope").is_none());
        let claims = read(signer.edge_token("server-1"));
        assert_eq!(
            (&claims["sub"], &claims["scope"]),
            (&"server-1".into(), &"edge".into())
        );
    }

    #[test]
    fn a_file_without_a_secret_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Signer::from_file(file.path(), "k").err().unwrap();
        assert!(error.is_usage());
        assert!(error.to_string().contains("hex text"), "{error}");
    }
}
