use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
        #[derive(Serialize)]
        struct Claims<'a> {
            sub: &'a str,
            exp: u64,
        }
        let claims = Claims {
            sub: user,
            exp: self.expires_s,
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
        let token = Signer::from_file(file.path(), "k1").unwrap().token("anna");
        assert_eq!(
            jsonwebtoken::decode_header(&token).unwrap().kid.as_deref(),
            Some("k1")
        );
        let key = DecodingKey::from_secret(&[0x00, 0xff, 0x10]);
        let claims = jsonwebtoken::decode::<serde_json::Value>(
            &token,
            &key,
            &Validation::new(Algorithm::HS256),
        )
        .unwrap();
        assert_eq!(claims.claims["sub"], "anna");
    }

    #[test]
    fn a_file_without_a_secret_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Signer::from_file(file.path(), "k").err().unwrap();
        assert!(error.is_usage());
        assert!(error.to_string().contains("hex text"), "{error}");
    }
}
