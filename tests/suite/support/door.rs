//! How a server of the tests is entered: in the clear or by TLS, by anybody or by users of an ACL file.

use redis::{Client, ClientTlsConfig, IntoConnectionInfo, TlsCertificates};
use tempfile::TempDir;

/// Open to anybody, in the clear, unless told otherwise.
#[derive(Default)]
pub struct Door {
    tls: Option<Tls>,
    /// The ACL file, with a user for the program and one that may do everything.
    acl: Option<Acl>,
    environment: Vec<String>,
}

/// One authority that has signed one certificate, for servers and clients.
struct Tls {
    dir: TempDir,
    authority: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

struct Acl {
    dir: TempDir,
    /// `name:password`
    login: &'static str,
}

const TESTER: &str = "tester:all";

impl Door {
    /// Servers that speak TLS only, and want a certificate of their clients, too.
    pub fn tls() -> Door {
        Door {
            tls: Some(Tls::new()),
            ..Door::default()
        }
    }

    /// Servers with these environment variables (`NAME=value`).
    pub fn with_environment(environment: Vec<String>) -> Door {
        Door {
            environment,
            ..Door::default()
        }
    }

    pub fn environment(&self) -> impl Iterator<Item = (&str, &str)> {
        self.environment
            .iter()
            .filter_map(|text| text.split_once('='))
    }

    /// Nobody enters but the users of this ACL file, as `login` (`name:password`) or as a tester who may do everything.
    pub fn acl(mut self, rules: &str, login: &'static str) -> Door {
        let dir = tempfile::tempdir().unwrap();
        let (name, password) = TESTER.split_once(':').unwrap();
        let rules = format!("{rules}\nuser {name} on >{password} ~* &* +@all\n");
        std::fs::write(dir.path().join("users.acl"), rules).unwrap();
        self.acl = Some(Acl { dir, login });
        self
    }

    /// The address as the program is given it.
    pub fn url(&self, host: &str) -> String {
        let login = self.acl.as_ref().map(|acl| format!("{}@", acl.login));
        format!("{}://{}{host}", self.scheme(), login.unwrap_or_default())
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_some() {
            "rediss"
        } else {
            "redis"
        }
    }

    /// Settings of the program that go with it.
    pub fn flags(&self) -> Vec<String> {
        let Some(tls) = &self.tls else { return vec![] };
        let file =
            |key: &str, name: &str| format!("store.{key}={}", tls.dir.path().join(name).display());
        vec![
            file("tls_ca_file", "ca.pem"),
            file("tls_cert_file", "cert.pem"),
            file("tls_key_file", "key.pem"),
        ]
    }

    /// Of the server.
    pub fn arguments(&self, port: u16) -> Vec<String> {
        let mut arguments = vec!["--port".to_owned(), port.to_string()];
        if let Some(tls) = &self.tls {
            let file = |name: &str| tls.dir.path().join(name).display().to_string();
            arguments[1] = "0".into();
            arguments.extend(["--tls-port".into(), port.to_string()]);
            arguments.extend(["--tls-ca-cert-file".into(), file("ca.pem")]);
            arguments.extend(["--tls-cert-file".into(), file("cert.pem")]);
            arguments.extend(["--tls-key-file".into(), file("key.pem")]);
            arguments.extend(["--tls-replication", "yes", "--tls-cluster", "yes"].map(Into::into));
        }
        if let Some(acl) = &self.acl {
            let file = acl.dir.path().join("users.acl");
            arguments.extend(["--aclfile".into(), file.display().to_string()]);
        }
        arguments
    }

    /// What replicas and sentinels log in with: options with `user` and `password` at their ends.
    pub fn login_of_servers(&self, user: &str, password: &str) -> Vec<String> {
        let Some((name, secret)) = self.acl.as_ref().and(TESTER.split_once(':')) else {
            return vec![];
        };
        [user, name, password, secret].map(str::to_owned).to_vec()
    }

    /// Enters as somebody who may do everything.
    pub fn client(&self, port: u16) -> Client {
        let login = self.acl.as_ref().map(|_| format!("{TESTER}@"));
        let login = login.unwrap_or_default();
        let url = format!("{}://{login}127.0.0.1:{port}", self.scheme());
        let info = url.into_connection_info().unwrap();
        match &self.tls {
            None => Client::open(info).unwrap(),
            Some(tls) => Client::build_with_tls(info, tls.certificates()).unwrap(),
        }
    }
}

impl Tls {
    fn new() -> Tls {
        let dir = tempfile::tempdir().unwrap();
        let mut authority = rcgen::CertificateParams::new(vec![]).unwrap();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        authority
            .distinguished_name
            .push(rcgen::DnType::CommonName, "authority of a test");
        let authority_key = rcgen::KeyPair::generate().unwrap();
        let signed = authority.self_signed(&authority_key).unwrap();
        let issuer = rcgen::Issuer::new(authority, authority_key);
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let tls = Tls {
            authority: signed.pem().into(),
            certificate: certificate.pem().into(),
            key: key.serialize_pem().into(),
            dir,
        };
        for (name, text) in [
            ("ca.pem", &tls.authority),
            ("cert.pem", &tls.certificate),
            ("key.pem", &tls.key),
        ] {
            std::fs::write(tls.dir.path().join(name), text).unwrap();
        }
        tls
    }

    fn certificates(&self) -> TlsCertificates {
        TlsCertificates {
            client_tls: Some(ClientTlsConfig {
                client_cert: self.certificate.clone(),
                client_key: self.key.clone(),
            }),
            root_cert: Some(self.authority.clone()),
        }
    }
}
