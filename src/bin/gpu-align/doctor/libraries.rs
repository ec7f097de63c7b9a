//! Libraries of the driver that lie on LD_LIBRARY_PATH and so come before the
//! driver's own: CUDA's link-time stubs, or a container's stale mounts.

use std::path::Path;

use serde::Serialize;

use crate::inside::env::Env;

const NAMES: [&str; 4] = ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so"];

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    pub path: String,
    /// Whether it only serves for linking and can start nothing.
    pub stub: bool,
}

pub fn look(root: &Path, env: &Env) -> Vec<Found> {
    let folders = env.get("LD_LIBRARY_PATH").unwrap_or_default().split(':');
    let mut found = Vec::new();
    for folder in folders.filter(|folder| folder.starts_with('/')) {
        for name in NAMES {
            let path = root.join(folder.trim_start_matches('/')).join(name);
            if path.exists() {
                let shown = format!("{}/{name}", folder.trim_end_matches('/'));
                found.push(Found { stub: folder.contains("/stubs"), path: shown });
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stub_on_the_path_is_found() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/local/cuda/lib64/stubs");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("libcuda.so"), "").unwrap();
        let path = "/opt/none:/usr/local/cuda/lib64/stubs".to_owned();
        let env = Env([("LD_LIBRARY_PATH".to_owned(), path)].into());
        let found = look(root.path(), &env);
        assert_eq!(found.len(), 1);
        assert!(found[0].stub && found[0].path == "/usr/local/cuda/lib64/stubs/libcuda.so");
    }
}
