//! What the address of a webhook may be.

use std::net::IpAddr;

use axum::http::Uri;

const BYTES_MAX: usize = 2_048;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error(
        "url {0:?} must be an address like https://events.example/hongbao of at most {BYTES_MAX} bytes, without user, password and fragment"
    )]
    Form(String),
    #[error(
        "url {0:?} must be https: plain http is for this machine alone (127.0.0.1, [::1], localhost), unless webhooks.allow_http is set"
    )]
    Plain(String),
}

pub fn checked(text: &str, allow_http: bool) -> Result<Uri, AddressError> {
    let shown = || text.chars().take(200).collect::<String>();
    let form = || AddressError::Form(shown());
    if text.len() > BYTES_MAX || text.contains('#') {
        return Err(form());
    }
    let url: Uri = text.parse().map_err(|_| form())?;
    let host = match url.authority() {
        Some(authority) if !authority.as_str().contains('@') => authority.host().to_owned(),
        Some(_) | None => return Err(form()),
    };
    match url.scheme_str() {
        _ if host.is_empty() => Err(form()),
        Some("https") => Ok(url),
        Some("http") if allow_http || is_loopback(&host) => Ok(url),
        Some("http") => Err(AddressError::Plain(shown())),
        Some(_) | None => Err(form()),
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    match address.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_stays_on_this_machine() {
        for good in [
            "https://events.example/hongbao?shop=7",
            "https://10.0.0.7:8443",
            "http://127.0.0.1:9/x",
            "http://[::1]:9",
            "http://localhost:9",
        ] {
            assert!(checked(good, false).is_ok(), "{good}");
        }
        for plain in [
            "http://events.example/",
            "http://10.0.0.7/",
            "http://localhost.example/",
            "http://127.0.0.1.example/",
        ] {
            let refused = checked(plain, false).unwrap_err();
            assert_eq!(refused, AddressError::Plain(plain.into()));
            assert!(checked(plain, true).is_ok(), "{plain}");
        }
        let long = format!("https://a.example/{}", "x".repeat(BYTES_MAX));
        for wrong in [
            "",
            "/hongbao",
            "events.example",
            "ftp://a.example/",
            "https://anna:secret@a.example/",
            "https://anna@a.example/",
            "https://a.example/#part",
            "https://",
            "https://a example/",
            &long,
        ] {
            let refused = checked(wrong, true).unwrap_err();
            assert!(matches!(refused, AddressError::Form(_)), "{wrong}");
        }
    }
}
