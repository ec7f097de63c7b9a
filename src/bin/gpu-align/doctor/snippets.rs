//! The user's own code that makes numbers of CUDA_VISIBLE_DEVICES' entries: the
//! Python files of the current folder, not those below it.

use std::fs;
use std::path::Path;

use gpu_align::device::clip;
use gpu_align::node::text;
use regex_lite::Regex;

const MAX_FILES: usize = 200;
const MAX_BYTES: usize = 256 << 10;
/// The first lines say enough.
const MAX_FOUND: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snippet {
    pub file: String,
    /// From 1.
    pub line: usize,
}

/// Lines with both words: `[int(i) for i in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]`,
/// `map(int, …)`.
pub fn look(folder: &Path) -> Vec<Snippet> {
    let int = Regex::new(r"\bint\b").expect("the pattern is a constant");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "py"))
        .take(MAX_FILES)
        .collect();
    files.sort();
    let mut found = Vec::new();
    for path in files.iter().filter(|path| path.is_file()) {
        let Ok(text) = text::read(path, MAX_BYTES) else { continue };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        for (number, line) in text.lines().enumerate() {
            let code = line.split('#').next().unwrap_or_default();
            if code.contains("CUDA_VISIBLE_DEVICES") && int.is_match(code) {
                found.push(Snippet { file: clip(&name), line: number + 1 });
            }
        }
    }
    found.truncate(MAX_FOUND);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_make_numbers_of_the_list_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let read = r#"os.environ["CUDA_VISIBLE_DEVICES"]"#;
        write("b.py", &format!("import os\nids = [int(i) for i in {read}.split(',')]\n"));
        write("a.py", &format!("n = len({read}.split(','))\nx = map(int, {read})  # note\n"));
        write("c.py", &format!("print({read})  # no int() here\nprint({read}) # int\n"));
        write("d.txt", &format!("int({read})\n"));
        let found: Vec<_> = look(folder.path()).into_iter().map(|s| (s.file, s.line)).collect();
        assert_eq!(found, [("a.py".to_owned(), 2), ("b.py".to_owned(), 2)]);
        assert_eq!(look(Path::new("/no/such/folder")), []);
    }
}
