//! Why somebody is not let in: what they are told, and what is counted.

/// One reason for each thing that an operator would do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Headers of the signature are missing, or not in their form.
    Unsigned,
    /// Signed too long ago, or ahead of time.
    Clock,
    /// The key is not known, its secret is another, or the request was changed on the way.
    Signature,
    /// The nonce was used before.
    Replayed,
    KeyRevoked,
    KeyExpired,
    /// The session of the console has ended.
    Session,
    /// A write by cookie that no page of the console has sent.
    ForeignPage,
    /// The key's roles do not allow it.
    NotAllowed,
}

impl Refusal {
    pub fn status(self) -> u16 {
        match self {
            Refusal::Unsigned
            | Refusal::Clock
            | Refusal::Signature
            | Refusal::Replayed
            | Refusal::KeyRevoked
            | Refusal::KeyExpired
            | Refusal::Session => 401,
            Refusal::ForeignPage | Refusal::NotAllowed => 403,
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Refusal::Unsigned => "the request is not signed",
            Refusal::Clock => "the request's time is off",
            Refusal::Signature => "the signature does not match",
            Refusal::Replayed => "the nonce was used before",
            Refusal::KeyRevoked => "the key is revoked",
            Refusal::KeyExpired => "the key has expired",
            Refusal::Session => "the session has ended",
            Refusal::ForeignPage => "not from a page of the console",
            Refusal::NotAllowed => "the key may not do this",
        }
    }

    /// In the metric `hongbao_admin_requests_total`.
    pub fn label(self) -> &'static str {
        match self {
            Refusal::Unsigned => "unsigned",
            Refusal::Clock => "clock",
            Refusal::Signature => "signature",
            Refusal::Replayed => "replayed",
            Refusal::KeyRevoked => "key_revoked",
            Refusal::KeyExpired => "key_expired",
            Refusal::Session => "session",
            Refusal::ForeignPage => "foreign_page",
            Refusal::NotAllowed => "not_allowed",
        }
    }
}
