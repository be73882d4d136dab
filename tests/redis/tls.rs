//! rediss://, with an authority that only this test knows.

use crate::scene::{count, open, options, try_open};
use crate::servers::{Certificates, Kind, Launch};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_believed_only_with_a_certificate_of_the_authority_that_was_named() {
    let (certificates, others) = (Certificates::make(), Certificates::make());
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Launch::new(kind).tls(&certificates).line("tls-auth-clients no").start();
        let to = |ca: &Certificates| format!("rediss://127.0.0.1:{}?ca={}", server.port, ca.ca.display());
        let redis = open(&to(&certificates), &options()).await;
        assert_eq!(count(&redis, "k").await, Ok(1));

        let refused = try_open(&to(&others), &options()).await.err().unwrap().to_string();
        assert!(refused.contains("TLS: invalid peer certificate"), "{refused}");
        let unknown = format!("rediss://127.0.0.1:{}", server.port);
        assert!(try_open(&unknown, &options()).await.is_err());
        let plain = format!("redis://127.0.0.1:{}", server.port);
        assert!(try_open(&plain, &options()).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_asks_for_a_certificate_gets_ours() {
    let certificates = Certificates::make();
    let server = Launch::new(Kind::Redis).tls(&certificates).line("tls-auth-clients yes").start();
    let ca = certificates.ca.display();
    let bare = format!("rediss://127.0.0.1:{}?ca={ca}", server.port);
    assert!(try_open(&bare, &options()).await.is_err());
    let (cert, key) = (certificates.server_cert.display(), certificates.server_key.display());
    let redis = open(&format!("{bare}&cert={cert}&key={key}"), &options()).await;
    assert_eq!(count(&redis, "k").await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_certificate_is_named() {
    let refused = try_open("rediss://127.0.0.1:1?ca=/etc/hostname", &options()).await;
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("cannot use /etc/hostname"), "{refused}");
}
