//! Issues certificates of a private authority, good ones and those that must be refused.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, date_time_ymd,
};

use crate::recorded_output::register_secret;

/// The names of servers in tests.
const LOCAL: [&str; 2] = ["localhost", "127.0.0.1"];

/// A certificate authority whose files are in a folder.
pub struct Authority {
    /// Its certificate.
    pub certificate: PathBuf,
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in files.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key, which only the owner can read.
    pub key: PathBuf,
}

impl Authority {
    /// An authority with a certificate `NAME.pem` in this folder.
    pub fn new(folder: &Path, name: &str) -> Self {
        let mut params = params(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key can be made");
        let signed = params.self_signed(&key).expect("an authority signs itself");
        let certificate = folder.join(format!("{name}.pem"));
        fs::write(&certificate, signed.pem()).expect("the folder can be written");
        Authority { certificate, folder: folder.into(), issuer: Issuer::new(params, key) }
    }

    /// A certificate for `localhost` and `127.0.0.1`, in files of this name.
    pub fn issue(&self, name: &str) -> CertificateFiles {
        self.issue_params(name, params(name, &LOCAL))
    }

    /// A certificate for other names.
    pub fn issue_for(&self, name: &str, hosts: &[&str]) -> CertificateFiles {
        self.issue_params(name, params(name, hosts))
    }

    /// A certificate that has expired.
    pub fn issue_expired(&self, name: &str) -> CertificateFiles {
        let mut params = params(name, &LOCAL);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.issue_params(name, params)
    }

    /// A certificate of a client.
    pub fn issue_client(&self, name: &str) -> CertificateFiles {
        let mut params = params(name, &[]);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue_params(name, params)
    }

    fn issue_params(&self, name: &str, params: CertificateParams) -> CertificateFiles {
        let key = KeyPair::generate().expect("a key can be made");
        let signed = params.signed_by(&key, &self.issuer).expect("an authority signs");
        write(&self.folder, name, &signed.pem(), &key)
    }
}

/// A certificate for `localhost` and `127.0.0.1` that signed itself, in files of this name.
pub fn self_signed(folder: &Path, name: &str) -> CertificateFiles {
    let mut params = params(name, &LOCAL);
    // As `openssl req -x509` does.
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key can be made");
    let signed = params.self_signed(&key).expect("a certificate signs itself");
    write(folder, name, &signed.pem(), &key)
}

impl CertificateFiles {
    /// Replaces the files of another certificate by these, each at once, as tools that renew certificates do.
    pub fn replace(&self, other: &CertificateFiles) {
        for (from, to) in [(&self.certificate, &other.certificate), (&self.key, &other.key)] {
            let new = to.with_extension("new");
            // The mode is copied, too.
            fs::copy(from, &new).expect("a file can be copied");
            fs::rename(&new, to).expect("a file can be renamed");
        }
    }
}

/// Writes the certificates that tests in other languages use: `ca.pem` and `other_ca.pem` are authorities; each other name has
/// a `.pem` and a `.key`.
pub fn write_for_clients(folder: &Path) {
    let authority = Authority::new(folder, "ca");
    authority.issue("server");
    authority.issue("renewed");
    authority.issue_expired("expired");
    authority.issue_for("other_name", &["example.com"]);
    authority.issue_client("client");
    self_signed(folder, "self_signed");
    Authority::new(folder, "other_ca").issue_client("other_client");
}

fn params(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).expect("names of tests are good");
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn write(folder: &Path, name: &str, certificate: &str, key: &KeyPair) -> CertificateFiles {
    let files = CertificateFiles {
        certificate: folder.join(format!("{name}.pem")),
        key: folder.join(format!("{name}.key")),
    };
    fs::write(&files.certificate, certificate).expect("the folder can be written");
    let file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&files.key);
    let key = key.serialize_pem();
    register_secret(&key);
    let written = file.and_then(|mut file| file.write_all(key.as_bytes()));
    written.expect("the folder can be written");
    files
}
