//! Whether this node's Slurm loads the plugin, as far as a user may read its
//! configuration.

use std::fmt;
use std::path::PathBuf;

use gpu_align::slurm::{conf, files, plugstack_conf};
use gpu_align::spank;

use crate::inside::env::Env;
use crate::release;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plugin {
    /// `plugstack.conf:3`, where gpu-align's line stands.
    pub line: Option<String>,
    /// The plugin file that the line names and that is not there.
    pub missing: Option<String>,
    /// What has no such line: the file, or all of Slurm's configuration.
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
        let why = match Plugin::in_files(|name| env.places_of(name)) {
            Ok(Some(plugin)) => return plugin,
            Ok(None) if inside => "there is no slurm.conf here".to_owned(),
            Ok(None) => return Plugin::default(),
            Err(why) => why.to_string(),
        };
        let unseen = vec![format!("whether Slurm loads gpu-align: {why}")];
        Plugin { unseen, ..Plugin::default() }
    }

    /// What Slurm's files say; `None` without a slurm.conf. `Err`: why one cannot be read.
    fn in_files(places: impl Fn(&str) -> Vec<PathBuf>) -> anyhow::Result<Option<Plugin>> {
        let Some(slurm_conf) = files::first(places("slurm.conf"))? else {
            return Ok(None);
        };
        let lines = conf::read(&slurm_conf)?;
        let path = plugstack_conf::find(&lines, places("plugstack.conf"))?;
        let entries = path.as_deref().map(plugstack_conf::read).transpose()?.unwrap_or_default();
        let mut plugin = Plugin::default();
        match entries.iter().find(|entry| entry.is_gpu_align()) {
            Some(entry) => {
                plugin.line = Some(format!("{}:{}", entry.file.display(), entry.line));
                let gone = entry.plugin.is_absolute() && !entry.plugin.exists();
                plugin.missing = gone.then(|| entry.plugin.display().to_string());
            }
            None => {
                let file = path.map(|path| path.display().to_string());
                plugin.absent_from = file.or(Some("Slurm's configuration".to_owned()));
            }
        }
        Ok(Some(plugin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    /// What a job is told where these files are Slurm's configuration.
    fn configured(folder: &Path, files: &[(&str, &str)]) -> Plugin {
        for (name, text) in files {
            fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
            fs::write(folder.join(name), text).unwrap();
        }
        let conf = folder.join("slurm.conf").display().to_string();
        Plugin::configured(&Env([("SLURM_CONF".into(), conf)].into()), true)
    }

    #[test]
    fn the_line_is_found_behind_an_include() {
        let root = tempfile::tempdir().unwrap();
        let include = "include plugstack.conf.d/*.conf\n";
        let files = [("slurm.conf", "ClusterName=x\n"), ("plugstack.conf", include)];
        assert!(configured(root.path(), &files).absent_from.is_some());
        let line = "# ours\nrequired /no/such/spank_gpu_align.so default=all\n";
        let plugin = configured(root.path(), &[("plugstack.conf.d/gpu-align.conf", line)]);
        assert!(plugin.line.unwrap().ends_with("gpu-align.conf:2"));
        assert_eq!(plugin.missing.as_deref(), Some("/no/such/spank_gpu_align.so"));
    }

    #[test]
    fn slurm_conf_says_where_the_line_is() {
        let root = tempfile::tempdir().unwrap();
        let other = root.path().join("other.conf").display().to_string();
        let named = format!("PlugStackConfig={other}\n");
        let line = "optional spank_gpu_align.so\n";
        let plugin = configured(root.path(), &[("slurm.conf", &named), ("other.conf", line)]);
        assert_eq!(plugin.line, Some(format!("{other}:1")));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_one_without_a_line() {
        let unreadable = |name: &str, slurm_conf: &str| {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir(root.path().join("folder.conf")).unwrap();
            let files = [("slurm.conf", slurm_conf), ("plugstack.conf", "include folder.conf\n")];
            let plugin = configured(root.path(), &files);
            assert_eq!((&plugin.line, &plugin.absent_from), (&None, &None));
            let at = root.path().join(name).display().to_string();
            let start = format!("whether Slurm loads gpu-align: cannot read {at}: ");
            assert!(plugin.unseen[0].starts_with(&start), "{:?}", plugin.unseen);
        };
        unreadable("folder.conf", "ClusterName=x\n");
        unreadable("gone.conf", "Include gone.conf\n");
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
