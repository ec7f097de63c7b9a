//! Small kernel files, read with a bound on what they may hold.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads at most `limit` bytes of `path`; what is not UTF-8 becomes U+FFFD.
///
/// Two reads and no stat for a file of /proc or /sys, which is what keeps the
/// plugin's share of a launch small.
pub fn read(path: &Path, limit: usize) -> io::Result<String> {
    let mut file = File::open(path)?;
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
