//! An authority of our own, and a certificate for 127.0.0.1 that it has signed.

use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

pub(crate) struct Certificates {
    _folder: TempDir,
    pub(crate) ca: PathBuf,
    pub(crate) server_cert: PathBuf,
    pub(crate) server_key: PathBuf,
}

impl Certificates {
    pub(crate) fn make() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let at = |name: &str| folder.path().join(name);
        openssl(
            folder.path(),
            &[
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=test authority",
                "-keyout",
                "ca.key",
                "-out",
                "ca.pem",
            ],
        );
        openssl(
            folder.path(),
            &[
                "req",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-subj",
                "/CN=redis",
                "-keyout",
                "server.key",
                "-out",
                "server.csr",
            ],
        );
        std::fs::write(at("names"), "subjectAltName=IP:127.0.0.1,DNS:localhost\n").unwrap();
        openssl(
            folder.path(),
            &[
                "x509",
                "-req",
                "-in",
                "server.csr",
                "-CA",
                "ca.pem",
                "-CAkey",
                "ca.key",
                "-days",
                "2",
                "-CAcreateserial",
                "-extfile",
                "names",
                "-out",
                "server.pem",
            ],
        );
        Self { ca: at("ca.pem"), server_cert: at("server.pem"), server_key: at("server.key"), _folder: folder }
    }
}

fn openssl(folder: &Path, args: &[&str]) {
    let output = Command::new("openssl").args(args).current_dir(folder).output();
    let output = output.expect("openssl: see CONTRIBUTING.md for what the tests need");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
