//! Looks at the real node, for this process or for another one of the same user.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gpu_align::device::{Device, Inventory};
use gpu_align::node::gather::{self, Sources};
use gpu_align::node::record;
use gpu_align::reach::{may_open, nodes, reach};
use gpu_align::slurm::files;
use gpu_align::slurm::gres_conf::GresError;

use super::env::Env;
use super::scene::{ORDER, PCI_ORDER, Scene, VISIBLE, cpu_list, near};
use crate::ask;

const TO_CUDA: [&str; 3] = [VISIBLE, ORDER, "CUDA_MPS_PIPE_DIRECTORY"];
const HELPER_PATIENCE: Duration = Duration::from_secs(10);

/// This process's scene under an environment: its own, or that of another
/// process that is not [`apart`](super::apart::apart) from it.
pub fn scene(env: Env) -> Scene {
    let mut scene = without_cuda(env);
    ask_cuda(&mut scene);
    scene
}

/// The scene of a process for which neither the kernel nor CUDA can be asked
/// from here, and why.
pub fn blind_scene(env: Env, why: &str) -> Scene {
    Scene {
        env,
        inventory: Err(why.to_owned()),
        gap: None,
        reach: Vec::new(),
        cuda: Err(why.to_owned()),
        unfiltered: Err(why.to_owned()),
        near: Vec::new(),
        cpus: String::new(),
        positions: Ok(None),
    }
}

/// The same without asking CUDA unless it must be: where an index counts the
/// fastest card first and only CUDA knows which that is.
pub fn quick_scene(env: Env) -> Scene {
    let mut scene = without_cuda(env);
    let models = scene.reach.iter().map(|device| &scene.cards().card(*device).model);
    let mut models: Vec<&String> = models.collect();
    models.dedup();
    let unknown = scene.reach.iter().any(|device| scene.cards().uuid(*device).is_none());
    let by_speed =
        scene.env.lists_indices() && models.len() > 1 && scene.env.get(ORDER) != Some(PCI_ORDER);
    if by_speed || unknown {
        ask_cuda(&mut scene);
    }
    scene
}

/// Asks CUDA under this process's own environment with what the scene's says
/// to CUDA: the libraries that another process loads are not ours to load.
fn ask_cuda(scene: &mut Scene) {
    let mut env = Env::own().without(&TO_CUDA);
    for name in TO_CUDA {
        env.0.extend(scene.env.owned(name).map(|value| (name.to_owned(), value)));
    }
    scene.cuda = ask::cuda(&env.0);
    scene.unfiltered = match scene.env.get(VISIBLE) {
        Some(_) => ask::cuda(&env.without(&[VISIBLE]).0),
        None => scene.cuda.clone(),
    };
}

fn without_cuda(env: Env) -> Scene {
    let root = Path::new("/");
    let sources = Sources {
        record: record::PATH.into(),
        helper: PathBuf::from("/proc/self/exe"),
        timeout: HELPER_PATIENCE,
    };
    let gathered = gather::gather(root, &sources, true);
    let inventory = gathered.inventory;
    let cpus = own_cpus();
    let known = inventory.as_ref().ok();
    Scene {
        reach: known.map(|known| reach(&nodes(known), may_open)).unwrap_or_default(),
        near: known.map(|known| near(root, known, &cpus)).unwrap_or_default(),
        positions: known.map_or(Ok(None), |known| positions(&env, known)),
        cpus: cpu_list(&cpus),
        gap: gathered.gap,
        inventory,
        cuda: Err("CUDA was not asked".into()),
        unfiltered: Err("CUDA was not asked".into()),
        env,
    }
}

fn own_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).ok();
    let most = rustix::thread::CpuSet::MAX_CPU;
    set.map(|set| (0..most).filter(|&cpu| set.is_set(cpu)).collect()).unwrap_or_default()
}

/// The gres list; `Ok(None)` outside of Slurm and where there is no gres.conf.
/// One that cannot be understood hides the others: they are not slurmd's.
fn positions(env: &Env, inventory: &Inventory) -> Result<Option<Vec<Option<Device>>>, GresError> {
    let Some(node) = env.get("SLURMD_NODENAME") else { return Ok(None) };
    let list = files::gres_list_at(&env.places_of("gres.conf"), node, inventory)?;
    Ok(list.map(|list| list.devices()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::simulated::{inventory, node};

    #[test]
    fn a_gres_conf_that_cannot_be_understood_is_said_and_one_that_is_not_there_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let conf = folder.path().join("slurm.conf");
        let variables = [("SLURM_CONF", conf.to_str().unwrap()), ("SLURMD_NODENAME", "n1")];
        let env = |count: usize| {
            let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
            Env(variables[..count].iter().map(owned).collect())
        };
        let cards = inventory(&node("tidy4"));
        let gres = folder.path().join("gres.conf");
        std::fs::write(&gres, "Name=gpu oops").unwrap();
        assert_eq!(positions(&env(1), &cards).unwrap(), None);
        let why = positions(&env(2), &cards).unwrap_err().to_string();
        assert!(why.contains("gres.conf:1: 'oops'"), "{why}");
        std::fs::write(&gres, "Name=gpu File=/dev/nvidia[0-3]").unwrap();
        assert_eq!(positions(&env(2), &cards).unwrap().map(|list| list.len()), Some(4));
    }

    #[test]
    fn slurms_files_are_where_the_plugin_finds_them() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("gres.conf"), "Name=gpu File=/dev/nvidia[0-3]").unwrap();
        let conf = folder.path().join("slurm.conf").display().to_string();
        // Neither takes a folder that depends on where a process stands.
        let relative = "../".repeat(conf.len()) + conf.trim_start_matches('/');
        let listed = |conf: String| {
            let variables = [("SLURM_CONF".into(), conf), ("SLURMD_NODENAME".into(), "n1".into())];
            positions(&Env(variables.into()), &inventory(&node("tidy4"))).unwrap()
        };
        let list = listed(conf);
        assert!(list.is_some());
        assert_ne!(listed(relative), list);
    }
}
