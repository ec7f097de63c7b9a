//! Scenes over the simulated nodes of `tests/nodes`, for golden outputs: the
//! stand-in for CUDA answers, and the test says what the kernel lets open.

use gpu_align::cuda::{Answer, CallError, CudaDevice};
use gpu_align::device::{Card, Inventory, Minor, Slice};
use gpu_align::reach::{nodes, reach};
use gpu_align::slurm::gres_conf::GresError;
use sim_node::{DeviceFile, Node};

use super::env::Env;
use super::scene::{ORDER, Scene, VISIBLE};
use super::screen::Screen;

pub const SCREEN: Screen = Screen { width: 100, colours: false };

pub fn node(name: &str) -> Node {
    let path = format!("{}/tests/nodes/{name}.json", env!("CARGO_MANIFEST_DIR"));
    Node::read(path.as_ref()).unwrap()
}

pub fn inventory(node: &Node) -> Inventory {
    let card = |card: &sim_node::Card| Card {
        pci: card.pci.to_string().parse().unwrap(),
        minor: Minor(card.minor),
        uuid: card.uuid.parse().ok(),
        model: card.model.clone(),
        numa: card.numa.and_then(|numa| u32::try_from(numa).ok()),
        slices: card.slices.iter().map(slice).collect(),
    };
    Inventory::new(node.cards.iter().map(card).collect())
}

fn slice(slice: &sim_node::Slice) -> Slice {
    Slice {
        uuid: slice.uuid.parse().unwrap(),
        gi: slice.gi,
        ci: slice.ci,
        profile: slice.profile.clone(),
        cap_minors: slice.cap_minors,
    }
}

/// A process on the node that can open these minors, with this environment.
pub fn scene(node: &Node, minors: &[u32], env: &[(&str, &str)]) -> Scene {
    let env = Env(env.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect());
    let inventory = inventory(node);
    let opens = |path: &str| match path.strip_prefix("/dev/nvidia") {
        Some(minor) => minor.parse().is_ok_and(|m| minors.contains(&m)) || minor.starts_with('-'),
        None => false,
    };
    Scene {
        reach: reach(&nodes(&inventory), opens),
        near: inventory.cards().iter().map(|card| card.numa == Some(0)).collect(),
        cpus: "0-3".into(),
        positions: Ok(None),
        gap: None,
        cuda: Ok(answer(node, minors, &env)),
        unfiltered: Ok(answer(node, minors, &env.without(&[VISIBLE]))),
        inventory: Ok(inventory),
        env,
    }
}

/// Why a gres list cannot be told.
pub fn oops() -> GresError {
    let (path, value) = ("gres.conf".into(), "oops".into());
    GresError::Line { path, line: 1, value, advice: "correct it" }
}

fn answer(node: &Node, minors: &[u32], env: &Env) -> Answer {
    let opens = |file| match file {
        DeviceFile::Card(minor) => minors.contains(&minor),
        DeviceFile::Cap(_) => true,
    };
    let listed = sim_cuda::enumerate(node, &opens, env.get(ORDER), env.get(VISIBLE));
    let error = listed.as_ref().err().map(|error| CallError {
        call: "cuInit".into(),
        code: Some(error.code()),
        name: error.name().to_string_lossy().into_owned(),
    });
    let device = |entry: sim_cuda::Entry| CudaDevice {
        uuid: entry.uuid.parse().unwrap(),
        pci: entry.pci.to_string().parse().unwrap(),
        name: entry.name,
        memory: entry.memory,
    };
    Answer {
        library: Some("/usr/lib/x86_64-linux-gnu/libcuda.so.1".into()),
        version: Some(node.cuda_version()),
        devices: listed.unwrap_or_default().into_iter().map(device).collect(),
        error,
    }
}

/// Compares with `tests/golden/<name>.snap`.
pub fn golden(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(format!("{}/tests/golden/inside", env!("CARGO_MANIFEST_DIR")));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}
