//! Certificates of a private authority, for servers and clients of tests.

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use std::path::Path;

/// Writes `NAME.crt`, `NAME.key`, and both as `NAME.pem`, for each of an authority (`ca`), a `server` and a `client` that it has signed, and an
/// authority that nobody trusts (`other`). The server is `localhost` and `127.0.0.1`.
///
/// # Panics
/// If they cannot be made or written.
pub fn certificates(dir: &Path) {
    let write = |name: &str, certificate: &str, key: &KeyPair| {
        let key = key.serialize_pem();
        let file = |end: &str, text: &str| std::fs::write(dir.join(format!("{name}.{end}")), text).expect("a file");
        file("crt", certificate);
        file("key", &key);
        file("pem", &format!("{key}{certificate}"));
    };
    let authority = |name: &str| {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        write(name, &params.self_signed(&key).expect("a certificate").pem(), &key);
        Issuer::new(params, key)
    };
    let ours = authority("ca");
    authority("other");
    for name in ["server", "client"] {
        let key = KeyPair::generate().expect("a key");
        let names = vec!["localhost".to_string(), "127.0.0.1".to_string()];
        let mut params = CertificateParams::new(names).expect("plain names");
        // Some servers call themselves with the certificate that they serve with.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        write(name, &params.signed_by(&key, &ours).expect("a certificate").pem(), &key);
    }
}
