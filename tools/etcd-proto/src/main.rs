//! Reads `rpc.proto` and writes `rpc.rs` beside it: `etcd-proto FOLDER`. No `protoc` is needed.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or("the folder of rpc.proto is missing")?);
    let described = protox::compile(["rpc.proto"], [&folder])?;
    let out = std::env::temp_dir().join(format!("etcd-proto.{}", std::process::id()));
    std::fs::create_dir_all(&out)?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .bytes(".")
        .out_dir(&out)
        .compile_fds(described)?;
    let made = std::fs::read_to_string(out.join("etcdserverpb.rs"))?;
    std::fs::remove_dir_all(&out)?;
    let head = "//! Messages and calls of etcd's version 3 interface: made of `rpc.proto` by `cargo xtask proto`, not to be changed by hand.\n\n";
    std::fs::write(folder.join("rpc.rs"), format!("{head}{made}"))?;
    Ok(())
}
