//! `cargo xtask proto`: makes `rpc.rs` of the etcd store from `rpc.proto`. Only whoever changes the description runs it; it builds
//! a small program of its own, apart from the workspace.

use crate::Result;
use crate::run;

/// `Ok(true)` if it was made.
pub(crate) fn proto() -> Result<bool> {
    let root = crate::root();
    let mut make = run::cargo();
    make.args(["run", "--quiet", "--target-dir", "target/etcd-proto", "--manifest-path"]);
    make.arg(root.join("tools/etcd-proto/Cargo.toml")).arg("--").arg(root.join("crates/fencelock/src/store/etcd"));
    let mut format = run::cargo();
    format.args(["fmt", "--package", "fencelock"]);
    for mut command in [make, format] {
        if let Some(complaint) = run::shown_lines(&mut command, None)?.complaint() {
            return Err(complaint);
        }
    }
    Ok(true)
}
