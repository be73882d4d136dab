//! rediss://, with an authority that only this test knows.

use crate::scene::{count, options, try_open, try_open_with};
use crate::servers::{Certificates, Kind, Launch};
use redrive::store::redis::{Access, Tls};
use std::path::Path;

fn trusting(ca: &Path) -> Access {
    Access { tls: Tls { ca: Some(ca.into()), ..Tls::default() }, ..Access::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_believed_only_with_a_certificate_of_the_authority_that_was_named() {
    let (certificates, others) = (Certificates::make(), Certificates::make());
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Launch::new(kind).tls(&certificates).line("tls-auth-clients no").start();
        let unknown = format!("rediss://127.0.0.1:{}", server.port);
        let redis = try_open_with(&unknown, &trusting(&certificates.ca), &options()).await.unwrap();
        assert_eq!(count(&redis, "k").await, Ok(1));

        let refused = try_open_with(&unknown, &trusting(&others.ca), &options()).await.err().unwrap().to_string();
        assert!(refused.contains("TLS: invalid peer certificate"), "{refused}");
        assert!(try_open(&unknown, &options()).await.is_err());
        let plain = format!("redis://127.0.0.1:{}", server.port);
        assert!(try_open(&plain, &options()).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_asks_for_a_certificate_gets_ours() {
    let certificates = Certificates::make();
    let server = Launch::new(Kind::Redis).tls(&certificates).line("tls-auth-clients yes").start();
    let address = format!("rediss://127.0.0.1:{}", server.port);
    let mut access = trusting(&certificates.ca);
    assert!(try_open_with(&address, &access, &options()).await.is_err());
    (access.tls.cert, access.tls.key) = (Some(certificates.server_cert.clone()), Some(certificates.server_key.clone()));
    let redis = try_open_with(&address, &access, &options()).await.unwrap();
    assert_eq!(count(&redis, "k").await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_certificate_is_named() {
    let refused = try_open_with("rediss://127.0.0.1:1", &trusting("/etc/hostname".as_ref()), &options()).await;
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("cannot use /etc/hostname"), "{refused}");
}
