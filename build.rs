//! Generates the wire types from `proto/` without protoc on the machine: protox parses, tonic-prost-build writes.

use prost::Message;
use std::{env, error::Error, fs, path::PathBuf};

#[expect(clippy::disallowed_methods, reason = "the environment is how Cargo talks to a build script")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = ["redrive/v1/queue.proto", "redrive/v1/admin.proto"];
    let descriptors = protox::compile(files, ["proto"])?;

    // Served by reflection, comments included, so that `grpcurl describe` explains every field.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("redrive.bin"), descriptors.encode_to_vec())?;

    let mut names = prost_build::Config::new();
    // The codec looks a request up by its name.
    names.enable_type_names();
    tonic_prost_build::configure()
        .codec_path("crate::grpc::codec::Codec")
        // Payloads stay slices of the network buffer.
        .bytes(".redrive.v1")
        .compile_fds_with_config(descriptors, names)?;
    Ok(())
}
