//! The syntax that all of Slurm's configuration files share.
//!
//! Follows `s_p_parse_file` (Slurm's `src/common/parse_config.c`, alike in
//! 22.05 and 24.11): `#` starts a comment unless escaped, a trailing
//! `\` continues a line, `\x` means `x`, `Include FILE` reads another file, and
//! a line is `Key=value` pairs with case-insensitive keys.
//!
//! The invariant: whatever the files hold, reading ends after at most
//! [`MAX_FILES`] files, [`MAX_BYTES`] and [`MAX_LINES`] in all, and never panics.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use thiserror::Error;

use crate::device::clip;

/// What is read in all; a real file has some kilobytes.
pub const MAX_BYTES: usize = 1 << 20;
/// Lines in all: each one costs many times its bytes.
pub const MAX_LINES: usize = 1 << 15;
/// Files read in all, the first one included.
pub const MAX_FILES: usize = 32;
const MAX_DEPTH: usize = 8;
const MAX_PATH: usize = 512;

#[derive(Debug, Error)]
pub enum ConfError {
    #[error("cannot read {}: {source}; correct its path or its mode", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} takes the configuration over {MAX_BYTES} bytes or {MAX_LINES} lines; move out what is not for this node", .0.display())]
    TooLarge(PathBuf),
    #[error("{}:{line}: Include {value}: more than {MAX_FILES} files or {MAX_DEPTH} levels; does a file include itself?", .path.display())]
    Include { path: PathBuf, line: usize, value: String },
    #[error("{}:{line}: Include {value}: no path is as long; correct it", .path.display())]
    LongName { path: PathBuf, line: usize, value: String },
}

impl ConfError {
    /// Whether there is no such file, as on a node that Slurm fills from slurm.conf alone.
    pub fn is_absent_at(&self, wanted: &Path) -> bool {
        matches!(self, ConfError::Read { path, source }
            if path == wanted && source.kind() == io::ErrorKind::NotFound)
    }
}

/// A line after comments, continuations and escapes are dealt with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub path: Rc<Path>,
    /// Counted from 1; the first one of several continued lines.
    pub number: usize,
    pub text: String,
}

/// Reads a configuration file and all that it includes.
pub fn read(path: &Path) -> Result<Vec<Line>, ConfError> {
    read_with(path, &mut read_bounded)
}

/// As [`read`], with the files' bytes from `open`.
pub fn read_with(
    path: &Path,
    open: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
) -> Result<Vec<Line>, ConfError> {
    let mut reader = Reader {
        open,
        home: path.parent().unwrap_or(Path::new("")),
        files: 0,
        room: MAX_BYTES,
        line_room: MAX_LINES,
        lines: Vec::new(),
    };
    reader.file(path, 0)?;
    Ok(reader.lines)
}

struct Reader<'a> {
    open: &'a mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    home: &'a Path,
    files: usize,
    room: usize,
    line_room: usize,
    lines: Vec<Line>,
}

impl Reader<'_> {
    fn file(&mut self, path: &Path, depth: usize) -> Result<(), ConfError> {
        self.files += 1;
        let bytes = (self.open)(path)
            .map_err(|source| ConfError::Read { path: path.to_owned(), source })?;
        let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
        let rooms = (self.room.checked_sub(bytes.len()), self.line_room.checked_sub(lines));
        let (Some(room), Some(line_room)) = rooms else {
            return Err(ConfError::TooLarge(path.to_owned()));
        };
        (self.room, self.line_room) = (room, line_room);
        let shared: Rc<Path> = path.into();
        for (number, text) in logical_lines(&String::from_utf8_lossy(&bytes)) {
            let Some(included) = included(&text) else {
                self.lines.push(Line { path: shared.clone(), number, text });
                continue;
            };
            if self.files >= MAX_FILES || depth >= MAX_DEPTH {
                return Err(ConfError::Include {
                    path: path.to_owned(),
                    line: number,
                    value: clip(included),
                });
            }
            if included.len() > MAX_PATH {
                return Err(ConfError::LongName {
                    path: path.to_owned(),
                    line: number,
                    value: clip(included),
                });
            }
            // A relative name counts from slurm.conf's folder in 24.11, from
            // that of the file it stands in in 22.05.
            let own = path.parent().unwrap_or(Path::new("")).join(included);
            let main = self.home.join(included);
            match self.file(&main, depth + 1) {
                Err(error) if error.is_absent_at(&main) && own != main => {
                    self.file(&own, depth + 1)?
                }
                done => done?,
            }
        }
        Ok(())
    }
}

fn included(line: &str) -> Option<&str> {
    let (word, rest) = line.split_at_checked("include".len())?;
    let directive = word.eq_ignore_ascii_case("include") && rest.starts_with(char::is_whitespace);
    directive.then(|| rest.split_whitespace().next()).flatten()
}

/// One open, one stat and two reads; a FIFO or a device does not block it.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let room = usize::try_from(meta.len()).map_or(MAX_BYTES, |len| len.min(MAX_BYTES));
    let mut bytes = Vec::with_capacity(room + 1);
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The lines of a text with their numbers, blank ones left out.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut pending = String::new();
    let mut start = 1;
    for (index, raw) in text.split('\n').enumerate() {
        if pending.is_empty() {
            start = index + 1;
        }
        let line = without_comment(raw);
        if let Some(head) = continued(line) {
            pending.push_str(head);
            continue;
        }
        pending.push_str(line);
        finish(&mut lines, start, &mut pending);
    }
    finish(&mut lines, start, &mut pending);
    lines
}

fn finish(lines: &mut Vec<(usize, String)>, start: usize, pending: &mut String) {
    let text = unescaped(pending);
    let text = text.trim();
    if !text.is_empty() {
        lines.push((start, text.to_owned()));
    }
    pending.clear();
}

fn without_comment(line: &str) -> &str {
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match c {
            '#' if !escaped => return &line[..at],
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    line
}

/// The part in front of an odd number of backslashes' last one, if the line ends so.
fn continued(line: &str) -> Option<&str> {
    let line = line.trim_end();
    let backslashes = line.len() - line.trim_end_matches('\\').len();
    (backslashes % 2 == 1).then(|| &line[..line.len() - 1])
}

fn unescaped(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.extend(chars.next()),
            _ => text.push(c),
        }
    }
    text
}

/// Splits a line into its `Key=value` pairs; `Err` holds what is not one.
///
/// A value is quoted, with blanks, or ends at the first blank. Slurm also
/// takes `Key+=value` and the like.
pub fn pairs(line: &str) -> Result<Vec<(&str, &str)>, &str> {
    let mut pairs = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (key, value, tail) = pair(rest).ok_or(rest)?;
        pairs.push((key, value));
        rest = tail.trim_start();
    }
    Ok(pairs)
}

fn pair(text: &str) -> Option<(&str, &str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.')?;
    let (key, rest) = text.split_at(end);
    let rest = rest.trim_start();
    let rest = rest.strip_prefix(['-', '+', '*', '/']).unwrap_or(rest);
    let rest = rest.strip_prefix('=')?.trim_start();
    if key.is_empty() || rest.is_empty() {
        return None;
    }
    if let Some((value, tail)) = rest.strip_prefix('"').and_then(|r| r.split_once('"')) {
        if tail.is_empty() || tail.starts_with(char::is_whitespace) {
            return Some((key, value, tail));
        }
    }
    let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
    Some((key, &rest[..end], &rest[end..]))
}

/// The last value of a key, as Slurm takes it, whatever the key's letter case.
pub fn value<'a>(pairs: &[(&'a str, &'a str)], key: &str) -> Option<&'a str> {
    pairs.iter().rev().find(|(k, _)| k.eq_ignore_ascii_case(key)).map(|&(_, v)| v)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(text: &str) -> Vec<(usize, String)> {
        logical_lines(text)
    }

    #[test]
    fn comments_continuations_and_escapes_are_slurms() {
        assert_eq!(
            texts("# all comment\nName=gpu # why\n\n  A=1 \\\n B=2 \\  \n C=3\nD=a\\#b\\\\\n"),
            [
                (2, "Name=gpu".to_owned()),
                (4, "A=1  B=2  C=3".to_owned()),
                (7, "D=a#b\\".to_owned()),
            ]
        );
    }

    #[test]
    fn windows_line_ends_are_blanks() {
        assert_eq!(texts("A=1\r\nB=2\r\n")[1], (2, "B=2".to_owned()));
    }

    #[test]
    fn values_may_be_quoted() {
        assert_eq!(
            pairs("Name = gpu Cores=\"0, 1\" Flags+=x"),
            Ok(vec![("Name", "gpu"), ("Cores", "0, 1"), ("Flags", "x")])
        );
        assert_eq!(pairs("Name=gpu oops"), Err("oops"));
        assert_eq!(pairs("Name="), Err("Name="));
    }

    #[test]
    fn an_include_counts_from_the_first_files_folder_or_its_own() {
        let mut open = |path: &Path| match path.to_str().unwrap() {
            "/etc/slurm/gres.conf" => Ok(b"A=1\ninclude sub/more.conf\nB=2".to_vec()),
            "/etc/slurm/sub/more.conf" => Ok(b"Include c.conf # 22.05\nInclude d.conf".to_vec()),
            "/etc/slurm/sub/c.conf" => Ok(b"C=3".to_vec()),
            "/etc/slurm/d.conf" => Ok(b"D=4".to_vec()),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        let lines = read_with(Path::new("/etc/slurm/gres.conf"), &mut open).unwrap();
        let found: Vec<_> = lines.iter().map(|l| (l.number, l.text.as_str())).collect();
        assert_eq!(found, [(1, "A=1"), (1, "C=3"), (1, "D=4"), (3, "B=2")]);
    }

    #[test]
    fn endless_includes_end_with_the_line_at_fault() {
        let mut opened = 0;
        let mut open = |_: &Path| {
            opened += 1;
            Ok(b"Include a.conf\nInclude a.conf".to_vec())
        };
        let error = read_with(Path::new("/x/a.conf"), &mut open).unwrap_err();
        assert!(error.to_string().starts_with("/x/a.conf:1: Include a.conf"));
        assert!(opened <= MAX_FILES);
    }

    #[test]
    fn an_endless_name_is_not_repeated_in_full() {
        let text = format!("\nInclude {}", "a/".repeat(100_000));
        let mut open = |_: &Path| Ok(text.as_bytes().to_vec());
        let error = read_with(Path::new("/x/a.conf"), &mut open).unwrap_err().to_string();
        assert!(error.starts_with("/x/a.conf:2: Include a/a/"), "{error}");
        assert!(error.len() < 200, "{error}");
    }

    #[test]
    fn only_regular_files_of_sane_size_are_read() {
        assert!(read(Path::new("/dev/zero")).is_err());
        let nowhere = Path::new("/nonexistent/gres.conf");
        assert!(read(nowhere).unwrap_err().is_absent_at(nowhere));
        let mut open = |_: &Path| Ok(vec![b'#'; MAX_BYTES + 1]);
        let error = read_with(Path::new("/x"), &mut open).unwrap_err();
        assert!(matches!(error, ConfError::TooLarge(_)));
        let mut open = |_: &Path| Ok(vec![b'\n'; MAX_LINES + 1]);
        let error = read_with(Path::new("/x"), &mut open).unwrap_err();
        assert!(matches!(error, ConfError::TooLarge(_)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut open = |_: &Path| Ok(bytes.clone());
            if let Ok(lines) = read_with(Path::new("/x/y"), &mut open) {
                for line in lines {
                    let _ = pairs(&line.text);
                }
            }
        }
    }
}
