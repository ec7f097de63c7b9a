//! Small kernel files, read with a bound on what they may hold.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Reads at most `limit` bytes of `path`; what is not UTF-8 becomes U+FFFD.
///
/// Two reads and no stat for a file of /proc or /sys, which is what keeps the
/// plugin's share of a launch small.
pub fn read(path: &Path, limit: usize) -> io::Result<String> {
    // Where a pipe has taken the file's place, opening must not wait for a writer.
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let mut bytes = vec![0; limit];
    let mut held = 0;
    while held < limit {
        match file.read(&mut bytes[held..]) {
            Ok(0) => break,
            Ok(n) => held += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(String::from_utf8_lossy(&bytes[..held]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_without_a_writer_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        assert_eq!(read(&path, 10).unwrap(), "");
    }

    #[test]
    fn no_more_is_read_than_was_asked_for() {
        assert_eq!(read(Path::new("/dev/zero"), 3).unwrap(), "\0\0\0");
    }
}
