//! Which Slurm runs here: the plugin file answers for the releases in its table
//! only.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpu_align::node::child::{self, ChildError, Group};

const PATIENCE: Duration = Duration::from_secs(5);
const MAX_BYTES: usize = 4096;

/// One of Slurm's programs, on PATH or where a daemon's usually lies.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin"].map(Into::into));
    folders.map(|folder| folder.join(program)).find(|path| path.is_absolute() && path.is_file())
}

/// What its `-V` says, like (22, 5); `Ok(None)` where that cannot be read. It
/// gets 5 s: a program of Slurm reads its configuration first, which may have to
/// come over the network.
pub fn ask(program: &Path) -> Result<Option<(u32, u32)>, ChildError> {
    let conf = env::var_os("SLURM_CONF");
    let environment: Vec<(&str, &OsStr)> =
        conf.iter().map(|conf| ("SLURM_CONF", conf.as_os_str())).collect();
    let output = child::run_with(program, &["-V"], &environment, Group::Own, PATIENCE, MAX_BYTES)?;
    Ok(version(&String::from_utf8_lossy(&output.stdout)))
}

/// (22, 5) of `slurm-wlm 22.05.8`.
fn version(text: &str) -> Option<(u32, u32)> {
    let version =
        text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_in_every_packagers_words() {
        assert_eq!(version("slurm-wlm 22.05.8\n"), Some((22, 5)));
        assert_eq!(version("slurm 24.11.5-3\n"), Some((24, 11)));
        assert_eq!(version("slurm\n"), None);
    }
}
