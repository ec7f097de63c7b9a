//! Where Slurm's configuration lies on a node, and the few facts in it that are
//! not about the gres list.

use std::env;
use std::path::{Path, PathBuf};

use super::conf::{self, ConfError};
use super::gres_conf::{GresError, named_gres};
use super::gres_list::GresList;
use crate::device::Inventory;

/// The places of a configuration file, in the order in which to look: beside
/// `SLURM_CONF`, where a configless slurmd keeps it, and the usual place.
pub fn candidates(name: &str) -> Vec<PathBuf> {
    candidates_of(env::var_os("SLURM_CONF").as_deref().map(Path::new), name)
}

/// The same for a process whose `SLURM_CONF` this is.
pub fn candidates_of(slurm_conf: Option<&Path>, name: &str) -> Vec<PathBuf> {
    let beside = slurm_conf.and_then(Path::parent).filter(|folder| folder.is_absolute());
    let usual = ["/run/slurm/conf", "/etc/slurm"].map(Path::new);
    beside.into_iter().chain(usual).map(|folder| folder.join(name)).collect()
}

/// The first of these files that is there. A folder that may not be searched
/// hides whether it is, which is an error.
pub fn first(places: impl IntoIterator<Item = PathBuf>) -> Result<Option<PathBuf>, ConfError> {
    for path in places {
        match path.try_exists() {
            Ok(true) => return Ok(Some(path)),
            Ok(false) => {}
            Err(source) => return Err(ConfError::Read { path, source }),
        }
    }
    Ok(None)
}

/// The gres list; `None` where no gres.conf is found. One that cannot be
/// understood hides the others: they are not slurmd's. So does the site's `own`,
/// whether it is there or not: a wrong path is to be said.
pub fn gres_list(
    own: Option<&Path>,
    node: &str,
    inventory: &Inventory,
) -> Result<Option<GresList>, GresError> {
    match own {
        Some(own) => GresList::read(own, node, Path::new("/"), inventory).map(Some),
        None => gres_list_at(&candidates("gres.conf"), node, inventory),
    }
}

/// The list of the first of these gres.conf that is there.
pub fn gres_list_at(
    places: &[PathBuf],
    node: &str,
    inventory: &Inventory,
) -> Result<Option<GresList>, GresError> {
    let path = places.iter().find(|path| path.exists());
    path.map(|path| GresList::read(path, node, Path::new("/"), inventory)).transpose()
}

/// How many GPUs slurm.conf's `Gres=` counts on a node; `None` where it does not
/// name the node, or cannot be read.
pub fn configured_gpus(node: &str) -> Option<usize> {
    let path = candidates("slurm.conf").into_iter().find(|path| path.exists())?;
    let gpus = named_gres(&conf::read(&path).ok()?, node)?;
    Some(gpus.iter().map(|(_, count)| count).sum())
}

/// Whether a cgroup.conf says `ConstrainDevices=yes`.
pub fn constrains_devices(cgroup_conf: &Path) -> Result<bool, ConfError> {
    let lines = conf::read(cgroup_conf)?;
    let said = value(&lines, "ConstrainDevices");
    // As s_p_parse_line's booleans.
    let yes = |word: &str| ["yes", "up", "true", "1"].contains(&word);
    Ok(said.is_some_and(|word| yes(&word.to_ascii_lowercase())))
}

/// Whether a slurm.conf's `TaskPlugin` has task/cgroup, which alone does what
/// `ConstrainDevices` says. No release has it by default.
pub fn has_task_cgroup(slurm_conf: &Path) -> Result<bool, ConfError> {
    let plugins = value(&conf::read(slurm_conf)?, "TaskPlugin").unwrap_or_default();
    Ok(plugins.split(',').any(|plugin| plugin.trim().trim_start_matches("task/") == "cgroup"))
}

/// Whether the files say that a task can open its own devices only. A slurm.conf
/// that is not there does not speak against it.
pub fn constrained() -> bool {
    let said = |name, ask: fn(&Path) -> Result<bool, ConfError>| {
        candidates(name).iter().find_map(|path| ask(path).ok())
    };
    said("cgroup.conf", constrains_devices) == Some(true)
        && said("slurm.conf", has_task_cgroup) != Some(false)
}

/// The value that holds for a key that may stand once in a file.
pub fn value(lines: &[conf::Line], key: &str) -> Option<String> {
    lines.iter().rev().find_map(|line| {
        let pairs = conf::pairs(&line.text).ok()?;
        conf::value(&pairs, key).map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_constrained_only_if_cgroup_conf_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cgroup.conf");
        let says = |text: &str| {
            std::fs::write(&path, text).unwrap();
            constrains_devices(&path).unwrap()
        };
        assert!(says("constraindevices=YES"));
        assert!(says("ConstrainCores=no\nConstrainDevices=no\nConstrainDevices=yes\n"));
        assert!(!says("ConstrainDevices=no"));
        assert!(!says("# ConstrainDevices=yes"));
        let plugins = |text: &str| {
            std::fs::write(&path, text).unwrap();
            has_task_cgroup(&path).unwrap()
        };
        assert!(plugins("TaskPlugin=task/affinity,task/cgroup"));
        assert!(plugins("taskplugin=cgroup"));
        assert!(!plugins("TaskPlugin=task/affinity"));
        assert!(!plugins("ProctrackType=proctrack/cgroup"));
        let none = folder.path().join("none");
        assert!(constrains_devices(&none).unwrap_err().is_absent_at(&none));
    }
}
