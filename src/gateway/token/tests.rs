use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::json;

use super::*;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const HOUR: Duration = Duration::from_secs(3_600);
const LEEWAY: Duration = Duration::from_secs(5);
/// Any instant.
const NOW_S: i64 = 1_784_500_000;

/// The key pair of RFC 8037, appendix A.1: 32 bytes each, base64url.
const ED_PRIVATE: &str = "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A";
const ED_PUBLIC: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";

fn bytes(base64url: &str) -> Vec<u8> {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(base64url)
        .unwrap()
}

fn ed_key() -> EncodingKey {
    // PKCS #8 (RFC 8410): version, algorithm 1.3.101.112, then the 32 bytes.
    let mut der = hex::decode("302e020100300506032b657004220420").unwrap();
    der.extend(bytes(ED_PRIVATE));
    EncodingKey::from_ed_der(&der)
}

fn sign(kid: &str, algorithm: Algorithm, key: &EncodingKey, payload: serde_json::Value) -> String {
    let header = Header {
        kid: Some(kid.to_owned()),
        ..Header::new(algorithm)
    };
    jsonwebtoken::encode(&header, &payload, key).unwrap()
}

fn hs(payload: serde_json::Value) -> String {
    let key = EncodingKey::from_secret(SECRET);
    sign("default", Algorithm::HS256, &key, payload)
}

fn keys() -> TokenKeys {
    TokenKeys::hs256("default", SECRET, LEEWAY)
}

fn code(token: &str) -> CloseCode {
    keys().verify(token, NOW_S * 1_000).unwrap_err().code
}

#[test]
fn a_token_speaks_for_its_user_or_its_server() {
    let anna = UserId::new("anna").unwrap();
    for (scope, edge) in [
        ("", false),
        ("edge", true),
        ("openid edge", true),
        ("edges", false),
        ("no-edge", false),
    ] {
        let token = issue_scoped(&anna, scope, "default", SECRET, HOUR);
        let identity = keys().verify(&token, crate::clock::now_ms()).unwrap();
        assert_eq!(
            (identity.user, identity.edge),
            (anna.clone(), edge),
            "{scope}"
        );
    }
}

#[test]
fn missing_forged_foreign_and_garbage_tokens_are_told_apart() {
    let payload = json!({"sub": "anna", "exp": NOW_S + 60});
    assert_eq!(code(""), CloseCode::TokenMissing);
    assert_eq!(code("garbage"), CloseCode::TokenInvalid);
    let another = EncodingKey::from_secret(b"another secret");
    let forged = sign("default", Algorithm::HS256, &another, payload.clone());
    assert_eq!(code(&forged), CloseCode::TokenInvalid);
    let secret = EncodingKey::from_secret(SECRET);
    let foreign = sign("other", Algorithm::HS256, &secret, payload.clone());
    assert_eq!(code(&foreign), CloseCode::TokenInvalid);
    // "alg": "none" and another algorithm with the same key are forgeries.
    let none =
        "eyJhbGciOiJub25lIiwia2lkIjoiZGVmYXVsdCJ9.eyJzdWIiOiJhbm5hIiwiZXhwIjo5OTk5OTk5OTk5fQ.";
    assert_eq!(code(none), CloseCode::TokenInvalid);
    let other = sign("default", Algorithm::HS512, &secret, payload);
    assert_eq!(code(&other), CloseCode::TokenInvalid);
    for bad in [
        json!({"sub": "two words", "exp": NOW_S + 60}),
        json!({"sub": "anna"}),
        json!({"exp": NOW_S + 60}),
        json!({"sub": "anna", "exp": "tomorrow"}),
    ] {
        assert_eq!(code(&hs(bad.clone())), CloseCode::TokenInvalid, "{bad}");
    }
}

/// Whoever writes a login service reads these in a log.
#[test]
fn what_is_wrong_with_a_token_is_said() {
    let secret = EncodingKey::from_secret(SECRET);
    let payload = json!({"sub": "anna", "exp": NOW_S + 60});
    let mut header = jsonwebtoken::Header::new(Algorithm::HS256);
    let no_kid = jsonwebtoken::encode(&header, &payload, &secret).unwrap();
    header.kid = Some("k9".into());
    let no_key = jsonwebtoken::encode(&header, &payload, &secret).unwrap();
    // {"alg":"none","kid":"default"}
    let no_alg = "eyJhbGciOiJub25lIiwia2lkIjoiZGVmYXVsdCJ9.eyJzdWIiOiJhbm5hIn0.".to_owned();
    for (token, reason) in [
        ("hello".to_owned(), "three parts between dots"),
        (no_kid, "names no key (kid)"),
        (no_key, "kid \"k9\" names no key of ours"),
        (no_alg, "its alg is neither EdDSA nor HS256"),
        (
            sign("default", Algorithm::HS512, &secret, payload.clone()),
            "alg is HS512, its key is for HS256",
        ),
        (hs(json!({"exp": NOW_S + 60})), "missing field `sub`"),
        (hs(json!({"sub": "anna"})), "missing field `exp`"),
    ] {
        let said = keys().verify(&token, NOW_S * 1_000).unwrap_err().reason;
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn a_token_is_valid_from_nbf_to_exp_give_or_take_the_leeway() {
    for (payload, refused) in [
        (json!({"sub": "anna", "exp": NOW_S - 5}), None),
        (
            json!({"sub": "anna", "exp": NOW_S - 6}),
            Some(CloseCode::TokenExpired),
        ),
        (
            json!({"sub": "anna", "exp": NOW_S as f64 - 5.5}),
            Some(CloseCode::TokenExpired),
        ),
        (
            json!({"sub": "anna", "exp": NOW_S + 60, "nbf": NOW_S + 5}),
            None,
        ),
        (
            json!({"sub": "anna", "exp": NOW_S + 60, "nbf": NOW_S + 6}),
            Some(CloseCode::TokenInvalid),
        ),
        (json!({"sub": "anna", "exp": 1e300}), None),
        (
            json!({"sub": "anna", "exp": -1e300}),
            Some(CloseCode::TokenExpired),
        ),
    ] {
        let verified = keys().verify(&hs(payload.clone()), NOW_S * 1_000);
        assert_eq!(verified.err().map(|error| error.code), refused, "{payload}");
    }
}

fn set(text: serde_json::Value) -> TokenKeys {
    let set = KeySet::read(text.to_string().as_bytes()).unwrap();
    TokenKeys::new(set, None, LEEWAY)
}

#[test]
fn an_algorithm_belongs_to_its_key() {
    use base64::Engine;
    let secret = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(SECRET);
    let keys = set(json!({"keys": [
        {"kid": "ed", "kty": "OKP", "crv": "Ed25519", "x": ED_PUBLIC},
        {"kid": "hs", "kty": "oct", "k": secret},
    ]}));
    let payload = json!({"sub": "anna", "exp": NOW_S + 60});
    let hs_key = EncodingKey::from_secret(SECRET);
    let verify = |token: &str| keys.verify(token, NOW_S * 1_000);
    for (kid, algorithm, key) in [
        ("ed", Algorithm::EdDSA, &ed_key()),
        ("hs", Algorithm::HS256, &hs_key),
    ] {
        let token = sign(kid, algorithm, key, payload.clone());
        assert_eq!(&*verify(&token).unwrap().credentials.kid, kid);
    }
    // The classic: a public key is known to everyone, and taken for an HMAC secret it would sign for everyone.
    let x = bytes(ED_PUBLIC);
    for public in [x.as_slice(), ED_PUBLIC.as_bytes()] {
        let key = EncodingKey::from_secret(public);
        let token = sign("ed", Algorithm::HS256, &key, payload.clone());
        assert_eq!(verify(&token).unwrap_err().code, CloseCode::TokenInvalid);
    }
    // A good signature of the one key under the name of the other.
    for (kid, algorithm, key) in [
        ("hs", Algorithm::EdDSA, &ed_key()),
        ("ed", Algorithm::HS256, &hs_key),
    ] {
        let token = sign(kid, algorithm, key, payload.clone());
        assert_eq!(verify(&token).unwrap_err().code, CloseCode::TokenInvalid);
    }
}

#[test]
fn keys_users_and_tokens_are_taken_back() {
    let keys = |revoked: serde_json::Value| {
        let mut text = json!({"keys": [
            {"kid": "ed", "kty": "OKP", "crv": "Ed25519", "x": ED_PUBLIC},
        ]});
        text.as_object_mut()
            .unwrap()
            .extend(revoked.as_object().unwrap().clone());
        set(text)
    };
    let payload = json!({"sub": "anna", "exp": NOW_S + 60, "iat": NOW_S - 10, "jti": "t1"});
    let token = sign("ed", Algorithm::EdDSA, &ed_key(), payload);
    let identity = keys(json!({})).verify(&token, NOW_S * 1_000).unwrap();
    for (revoked, hits) in [
        (json!({}), false),
        (json!({"revoked_keys": ["other"]}), false),
        (json!({"revoked_keys": ["ed"]}), true),
        (json!({"revoked_users": {"ben": NOW_S}}), false),
        (json!({"revoked_users": {"anna": NOW_S - 11}}), false),
        (json!({"revoked_users": {"anna": NOW_S - 10}}), true),
        (json!({"revoked_tokens": ["t2"]}), false),
        (json!({"revoked_tokens": ["t1"]}), true),
    ] {
        let keys = keys(revoked.clone());
        let refused = keys
            .verify(&token, NOW_S * 1_000)
            .err()
            .map(|error| error.code);
        let ended = keys.lapsed(&identity.user, &identity.credentials, NOW_S * 1_000);
        let expected = hits.then_some(CloseCode::TokenRevoked);
        assert_eq!(refused, expected, "{revoked}");
        assert_eq!(ended.map(|(code, _)| code), expected, "{revoked}");
    }
    let late = (NOW_S + 66) * 1_000;
    let ended = keys(json!({})).lapsed(&identity.user, &identity.credentials, late);
    assert_eq!(ended.map(|(code, _)| code), Some(CloseCode::SessionExpired));
}
