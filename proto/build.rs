//! Compiles `proto/hongbao.proto` with protox, so that no system `protoc` is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/hongbao.proto");
    let descriptors = protox::compile(["proto/hongbao.proto"], ["proto"])?;
    prost_build::Config::new()
        .bytes(["."])
        .compile_fds(descriptors)?;
    Ok(())
}
