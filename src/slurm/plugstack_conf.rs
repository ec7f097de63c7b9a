//! plugstack.conf itself, for `gpu-align check` and `doctor`: where it is, which
//! plugins Slurm loads, in which order, with which arguments.
//!
//! Follows `_spank_stack_load` (`src/common/plugstack.c`): a line is
//! `required|optional PLUGIN [ARGUMENTS]` or `include PATTERN`; `#` starts a comment.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::conf::{ConfError, Line};
use super::files;

/// Files read in all, so that a file that includes itself comes to an end.
const MAX_FILES: usize = 64;

#[derive(Debug, Error)]
pub enum PlugstackError {
    #[error("cannot read {}: {source}; correct its path or its mode", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is included after {MAX_FILES} other files; take out the include that closes a circle", .0.display())]
    Endless(PathBuf),
}

impl PlugstackError {
    fn is_absence(&self) -> bool {
        matches!(self, PlugstackError::Read { source, .. }
            if source.kind() == io::ErrorKind::NotFound)
    }
}

/// A line that loads a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub file: PathBuf,
    /// Counted from 1.
    pub line: usize,
    pub required: bool,
    /// As written: absolute, or relative to slurm.conf's PluginDir.
    pub plugin: PathBuf,
    pub arguments: Vec<String>,
}

impl Entry {
    /// Whether the plugin is gpu-align, under whatever name it was installed.
    pub fn is_gpu_align(&self) -> bool {
        let name = self.plugin.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.replace('-', "_").contains("gpu_align")
    }
}

/// The plugstack.conf that slurm.conf's lines name, or the first of the `usual`
/// ones; `None` where it is not there.
pub fn find(slurm_conf: &[Line], usual: Vec<PathBuf>) -> Result<Option<PathBuf>, ConfError> {
    let own = files::value(slurm_conf, "PlugStackConfig");
    files::first(own.map_or(usual, |own| vec![own.into()]))
}

/// Reads a plugstack.conf and all that it includes.
pub fn read(path: &Path) -> Result<Vec<Entry>, PlugstackError> {
    let mut entries = Vec::new();
    let mut files = 0;
    read_into(path, &mut files, &mut entries)?;
    Ok(entries)
}

fn read_into(
    path: &Path,
    files: &mut usize,
    entries: &mut Vec<Entry>,
) -> Result<(), PlugstackError> {
    *files += 1;
    if *files > MAX_FILES {
        return Err(PlugstackError::Endless(path.into()));
    }
    let text = fs::read_to_string(path)
        .map_err(|source| PlugstackError::Read { path: path.into(), source })?;
    for (index, raw) in text.lines().enumerate() {
        let line = raw.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let (Some(first), Some(second)) = (words.next(), words.next()) else {
            continue;
        };
        match first {
            "required" | "optional" => entries.push(Entry {
                file: path.into(),
                line: index + 1,
                required: first == "required",
                plugin: second.into(),
                arguments: words.map(str::to_owned).collect(),
            }),
            "include" => {
                let folder = path.parent().unwrap_or(Path::new(""));
                for included in matching(&folder.join(second)) {
                    match read_into(&included, files, entries) {
                        // As glob(3) has it.
                        Err(why) if why.is_absence() => {}
                        done => done?,
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The files that a pattern names, sorted as glob(3) sorts them; `*` counts in
/// the last part only.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some((head, tail)) = name.split_once('*') else {
        return vec![pattern.to_owned()];
    };
    let fits = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.len() >= head.len() + tail.len()
            && name.starts_with(head)
            && name.ends_with(tail)
            && !(head.is_empty() && name.starts_with('.'))
    };
    let entries = fs::read_dir(pattern.parent().unwrap_or(Path::new("/"))).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(fits).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::conf;

    #[test]
    fn plugins_come_in_the_order_of_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "plugstack.conf",
            "# all\ninclude plugstack.conf.d/*.conf\noptional /x/last.so # end\n",
        );
        write("plugstack.conf.d/b.conf", "required spank_gpu_align.so default=all timeout=3\n");
        write("plugstack.conf.d/a.conf", "required /x/spank_pyxis.so\n");
        write("plugstack.conf.d/off.conf.bak", "required /x/never.so\n");
        let entries = read(&folder.path().join("plugstack.conf")).unwrap();
        let names: Vec<_> = entries.iter().map(|e| e.plugin.to_str().unwrap()).collect();
        assert_eq!(names, ["/x/spank_pyxis.so", "spank_gpu_align.so", "/x/last.so"]);
        assert!(entries[1].is_gpu_align() && entries[1].required && !entries[2].required);
        assert_eq!(entries[1].arguments, ["default=all", "timeout=3"]);
        assert_eq!(entries[1].line, 1);
    }

    #[test]
    fn a_path_in_slurm_conf_is_the_only_one() {
        let folder = tempfile::tempdir().unwrap();
        let usual = folder.path().join("plugstack.conf");
        fs::write(&usual, "").unwrap();
        let found = |slurm_conf: &str| {
            let mut open = |_: &Path| Ok(slurm_conf.as_bytes().to_vec());
            let lines = conf::read_with(Path::new("slurm.conf"), &mut open).unwrap();
            find(&lines, vec![usual.clone()]).unwrap()
        };
        assert_eq!(found("ClusterName=x"), Some(usual.clone()));
        assert_eq!(found("PlugStackConfig=/nowhere/plugstack.conf"), None);
    }

    #[test]
    fn a_file_that_includes_itself_comes_to_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plugstack.conf");
        fs::write(&path, "include plugstack.conf\n").unwrap();
        let error = read(&path).unwrap_err();
        assert!(matches!(&error, PlugstackError::Endless(file) if *file == path), "{error}");
    }

    #[test]
    fn an_included_file_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plugstack.conf");
        fs::write(&path, "include gone.conf\ninclude folder.conf\n").unwrap();
        fs::create_dir(folder.path().join("folder.conf")).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("/folder.conf: Is a directory"), "{error}");
    }
}
