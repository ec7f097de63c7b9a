//! Whether this node's Slurm loads the plugin, as far as a user may read its
//! configuration.

use std::fmt;
use std::path::{Path, PathBuf};

use gpu_align::slurm::conf;
use gpu_align::spank;

use crate::inside::env::Env;
use crate::release;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plugin {
    /// `plugstack.conf:3`, where gpu-align's line stands.
    pub line: Option<String>,
    /// The plugin file that the line names and that is not there.
    pub missing: Option<String>,
    /// The file without such a line.
    pub absent_from: Option<String>,
    /// The Slurm that has to load it.
    pub slurm: Option<Slurm>,
    pub unseen: Vec<String>,
}

/// A Slurm, and the program that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slurm {
    pub program: PathBuf,
    /// Like (24, 11).
    pub release: (u32, u32),
}

impl Slurm {
    /// The node's own slurmd, which loads the plugin; else the commands that
    /// users have. `Err`: a sentence.
    fn look(find: impl Fn(&str) -> Option<PathBuf>) -> Result<Slurm, String> {
        let program = ["slurmd", "sinfo"].into_iter().find_map(find);
        let program =
            program.ok_or("Slurm's release: there is neither slurmd nor sinfo on PATH")?;
        match release::ask(&program) {
            Ok(Some(release)) => Ok(Slurm { program, release }),
            Ok(None) => Err(format!("Slurm's release: {} -V does not tell it", program.display())),
            Err(why) => Err(format!("Slurm's release: {why}")),
        }
    }

    pub fn is_known(&self) -> bool {
        let (major, minor) = self.release;
        spank::supports(major, minor)
    }
}

impl fmt::Display for Slurm {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (major, minor) = self.release;
        write!(f, "{} -V says Slurm {major}.{minor:02}", self.program.display())
    }
}

impl Plugin {
    pub fn look(env: &Env) -> Plugin {
        let inside = env.get("SLURM_JOB_ID").is_some();
        let mut plugin = Plugin::configured(env, inside);
        if inside || plugin.line.is_some() {
            match Slurm::look(release::find) {
                Ok(slurm) => plugin.slurm = Some(slurm),
                Err(why) => plugin.unseen.push(why),
            }
        }
        plugin
    }

    fn configured(env: &Env, inside: bool) -> Plugin {
        let places = env.places_of("slurm.conf");
        let place = places.iter().find(|path| path.is_file()).and_then(|path| path.parent());
        let Some(folder) = place else {
            let why = "Slurm's configuration: no slurm.conf can be read here".to_owned();
            let unseen = inside.then_some(why).into_iter().collect();
            return Plugin { unseen, ..Plugin::default() };
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
    use std::os::unix::fs::PermissionsExt;

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

    #[test]
    fn fc_48_slurmd_is_asked_for_its_release_before_sinfo_and_silence_is_no_answer() {
        let folder = tempfile::tempdir().unwrap();
        let find = |name: &str| Some(folder.path().join(name)).filter(|path| path.exists());
        let program = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        let why = Slurm::look(find).unwrap_err();
        assert_eq!(why, "Slurm's release: there is neither slurmd nor sinfo on PATH");
        program("sinfo", "echo slurm 26.11.0");
        let slurm = Slurm::look(find).unwrap();
        assert!(slurm.to_string().ends_with("/sinfo -V says Slurm 26.11") && !slurm.is_known());
        program("slurmd", "echo slurm-wlm 22.05.8");
        assert!(Slurm::look(find).unwrap().is_known());
        program("slurmd", "exit 1");
        assert!(Slurm::look(find).unwrap_err().ends_with("/slurmd -V does not tell it"));
    }
}
