//! Whether this node's Slurm loads the plugin, as far as a user may read its
//! configuration.

use std::path::{Path, PathBuf};

use gpu_align::slurm::conf;

use crate::inside::env::Env;
use crate::inside::gather::slurm_folders;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plugin {
    /// `plugstack.conf:3`, where gpu-align's line stands.
    pub line: Option<String>,
    /// The plugin file that the line names and that is not there.
    pub missing: Option<String>,
    /// The file without such a line.
    pub absent_from: Option<String>,
    pub unseen: Option<String>,
}

impl Plugin {
    pub fn look(env: &Env) -> Plugin {
        let folders = slurm_folders(env);
        let Some(folder) = folders.iter().find(|folder| folder.join("slurm.conf").is_file()) else {
            let inside = env.get("SLURM_JOB_ID").is_some();
            let why = "Slurm's configuration: no slurm.conf can be read here".to_owned();
            return Plugin { unseen: inside.then_some(why), ..Plugin::default() };
        };
        Plugin::in_folder(folder)
    }

    fn in_folder(folder: &Path) -> Plugin {
        let lines = conf::read(&folder.join("slurm.conf")).unwrap_or_default();
        let named = lines.iter().find_map(|line| {
            let pairs = conf::pairs(&line.text).ok()?;
            Some(PathBuf::from(conf::value(&pairs, "PlugStackConfig")?))
        });
        let path = named.unwrap_or_else(|| folder.join("plugstack.conf"));
        let mut plugin = Plugin::default();
        if !search(&path, 0, &mut plugin) {
            plugin.absent_from = Some(path.display().to_string());
        }
        plugin
    }
}

/// Looks for gpu-align's line; `include` may name a pattern in the last part of
/// its path.
fn search(path: &Path, depth: usize, plugin: &mut Plugin) -> bool {
    const MAX_DEPTH: usize = 4;
    let Ok(text) = gpu_align::node::text::read(path, 256 << 10) else { return false };
    for (number, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["include", pattern, ..]
                if depth < MAX_DEPTH
                    && matching(path, pattern)
                        .iter()
                        .any(|file| search(file, depth + 1, plugin)) =>
            {
                return true;
            }
            ["required" | "optional", file, ..] if file.contains("gpu_align") => {
                plugin.line = Some(format!("{}:{}", path.display(), number + 1));
                let absolute = file.starts_with('/');
                plugin.missing = (absolute && !Path::new(file).exists()).then(|| file.to_owned());
                return true;
            }
            _ => {}
        }
    }
    false
}

/// The files that an include names: relative to the file that includes, with
/// `*` in the last part.
fn matching(from: &Path, pattern: &str) -> Vec<PathBuf> {
    let pattern = from.parent().unwrap_or(Path::new("/")).join(pattern);
    let (Some(folder), Some(name)) =
        (pattern.parent(), pattern.file_name().and_then(|n| n.to_str()))
    else {
        return Vec::new();
    };
    let Some((before, after)) = name.split_once('*') else { return vec![pattern] };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.len() >= before.len() + after.len()
                && name.starts_with(before)
                && name.ends_with(after)
        })
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_line_is_found_behind_an_include() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        fs::write(folder.join("slurm.conf"), "ClusterName=x\n").unwrap();
        assert!(Plugin::in_folder(folder).absent_from.is_some());
        fs::create_dir(folder.join("plugstack.conf.d")).unwrap();
        fs::write(folder.join("plugstack.conf"), "include plugstack.conf.d/*.conf\n").unwrap();
        let line = "# ours\nrequired /no/such/spank_gpu_align.so default=all\n";
        fs::write(folder.join("plugstack.conf.d/gpu-align.conf"), line).unwrap();
        let plugin = Plugin::in_folder(folder);
        assert!(plugin.line.unwrap().ends_with("gpu-align.conf:2"));
        assert_eq!(plugin.missing.as_deref(), Some("/no/such/spank_gpu_align.so"));
    }
}
