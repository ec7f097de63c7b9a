use super::*;
use crate::inside::simulated::{SCREEN, golden, node, scene};
use crate::inside::usage::{CardUse, Holder};

pub fn patient(scene: Scene) -> Patient {
    Patient {
        usage: Ok(Usage { driver: Some("580.159.04".into()), ..Usage::default() }),
        hits: Vec::new(),
        above: Vec::new(),
        driver: Some("580.159.04".into()),
        plugin: plugin::Plugin::default(),
        libraries: Vec::new(),
        python: Ok(python::Python { interpreter: "/usr/bin/python3".into(), packages: vec![] }),
        snippets: Vec::new(),
        running: Vec::new(),
        mps: Seen::Nothing,
        in_container: false,
        unseen: Vec::new(),
        scene,
    }
}

fn page(patient: &Patient) -> String {
    let page = Page::of(patient);
    format!("{}exit {}\n", page.text(SCREEN), page.exit)
}

fn package(name: &str, version: &str, cuda: Option<&str>) -> python::Package {
    let cuda = cuda.map(str::to_owned);
    python::Package { name: name.into(), version: version.into(), cuda }
}

#[test]
fn a_healthy_task() {
    let u2 = "GPU-00000000-0004-4000-8000-000000000002";
    let env = [
        ("SLURMD_NODENAME", "n1"),
        ("SLURM_JOB_ID", "12"),
        ("SLURM_STEP_ID", "0"),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("CUDA_VISIBLE_DEVICES", u2),
        ("GPU_ALIGN_VERSION", "0.1.0"),
        ("GPU_ALIGN_MODE", "single"),
        ("GPU_ALIGN_UUIDS", u2),
        ("SECRET", "never"),
    ];
    let mut patient = patient(scene(&node("tidy4"), &[2], &env));
    let card = patient.scene.cards().cards()[2].clone();
    patient.usage = Ok(Usage {
        driver: Some("580.159.04".into()),
        cards: vec![CardUse {
            pci: card.pci,
            uuid: card.uuid,
            total: Some(80 << 30),
            free: Some(80 << 30),
            load: Some(0),
            compute_mode: Some("default".into()),
            persistence: Some(true),
            mig: Some(false),
            slices: vec![],
            processes: Some(vec![Holder { pid: 1, memory: None, graphics: false }]),
        }],
        silent: vec![],
    });
    let page = page(&patient);
    assert!(!page.contains("never"));
    golden("doctor-healthy", &page);
}

#[test]
fn a_lost_user() {
    let env = [
        ("SLURMD_NODENAME", "n1"),
        ("SLURM_JOB_ID", "12"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_GPUS", "0"),
        ("CUDA_VISIBLE_DEVICES", "GPU-00000000-0008-4000-8000-000000000006"),
        ("NVIDIA_VISIBLE_DEVICES", "4,5"),
        ("ROCR_VISIBLE_DEVICES", "0"),
        ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps"),
    ];
    let mut patient = patient(scene(&node("inv8p"), &[0, 1, 2, 3, 4, 5, 6, 7], &env));
    patient.usage =
        Err("NVML cannot be loaded; libnvidia-ml.so.1 is not on the loader's path".into());
    patient.hits = hands::in_text("/home/u/.bashrc", "export CUDA_VISIBLE_DEVICES=3\n", &[VISIBLE]);
    patient.plugin.line = Some("/etc/slurm/plugstack.conf:1".into());
    let stub = "/usr/local/cuda/lib64/stubs/libcuda.so";
    patient.libraries = vec![libraries::Found { path: stub.into(), stub: true }];
    patient.driver = Some("590.10".into());
    patient.scene.unfiltered.as_mut().unwrap().library =
        Some("/usr/lib/libcuda.so.580.159.04".into());
    patient.running = vec![Running {
        pid: 4711,
        user: Some("ann".into()),
        program: Some("python".into()),
        own: false,
        pci: "0000:c1:00.0".into(),
        memory: Some(3 << 30),
    }];
    patient.python = Ok(python::Python {
        interpreter: "/opt/env/bin/python3".into(),
        packages: vec![
            package("torch", "1.13.1+cu117", Some("11.7")),
            package("vllm", "0.22.1", None),
            package("jax_cuda13_plugin", "0.8", Some("13")),
        ],
    });
    patient.unseen = vec!["the batch script: there is no scontrol on PATH".into()];
    golden("doctor-lost", &page(&patient));
    golden("doctor-json", &serde_json::to_string_pretty(&Page::of(&patient).findings).unwrap());
}

#[test]
fn nothing_at_all() {
    let mut scene = scene(&node("none"), &[], &[("SLURMD_NODENAME", "n1")]);
    scene.inventory = Err("the NVIDIA driver is not loaded: /proc/driver/nvidia/gpus is missing; load it or ask the admin".into());
    scene.cuda = Err("CUDA could not be asked".into());
    scene.unfiltered = scene.cuda.clone();
    let mut patient = patient(scene);
    patient.driver = None;
    golden("doctor-blind", &page(&patient));
}

#[test]
fn known_parsers_are_told_by_version_and_form() {
    let say = |visible: &str, name: &str, version: &str| {
        let env = [("CUDA_VISIBLE_DEVICES", visible)];
        let mut patient = patient(scene(&node("tidy4"), &[0], &env));
        patient.python = Ok(python::Python {
            interpreter: "python3".into(),
            packages: vec![package(name, version, None)],
        });
        let found = findings::findings(&patient).into_iter().find(|f| f.topic == "python");
        found.map(|finding| finding.level)
    };
    let uuid = "GPU-00000000-0004-4000-8000-000000000000";
    assert_eq!(say(uuid, "vllm", "0.22.0"), Some(Level::Warning));
    assert_eq!(say("0", "vllm", "0.22.0"), Some(Level::Note));
    assert_eq!(say(uuid, "vllm", "0.24.0"), None);
    assert_eq!(say(uuid, "torch", "1.13.1"), Some(Level::Warning));
    assert_eq!(say(uuid, "torch", "2.11.0+cu130"), None);
    assert_eq!(say(uuid, "ray", "2.9.3"), Some(Level::Warning));
    assert_eq!(say(uuid, "ray", "2.7.1"), None);
    assert_eq!(say(uuid, "ray", "0.8.4"), Some(Level::Warning));
    assert_eq!(say(uuid, "dask_cuda", "0.16.0"), Some(Level::Warning));
    assert_eq!(say(uuid, "dask_cuda", "24.10.0"), None);
    for name in ["openmm", "openmmtools", "meld", "gprmax", "ray_lightning", "deepspeed"] {
        assert_eq!(say(uuid, name, "8.1.1"), Some(Level::Warning), "{name}");
        assert_eq!(say("0", name, "8.1.1"), Some(Level::Note), "{name}");
    }
    let short = &uuid[..12];
    assert_eq!(say(short, "vllm", "0.24.1"), Some(Level::Warning));
    assert_eq!(say(short, "torch", "2.11.0"), None);
}

#[test]
fn fc_17_code_that_calls_int_on_every_entry_is_named_before_uuids_break_it() {
    let uuid = "GPU-00000000-0004-4000-8000-000000000000";
    let say = |visible: &str, packages: Vec<python::Package>, lines: &[(&str, usize)]| {
        let env = [("CUDA_VISIBLE_DEVICES", visible)];
        let mut patient = patient(scene(&node("tidy4"), &[0], &env));
        patient.python = Ok(python::Python { interpreter: "python3".into(), packages });
        let line = |&(file, line): &(&str, usize)| snippets::Snippet { file: file.into(), line };
        patient.snippets = lines.iter().map(line).collect();
        let found = findings::findings(&patient).into_iter().find(|f| f.topic == "python");
        found.map(|finding| (finding.level, finding.what, finding.todo))
    };
    // Before a site selects UUIDs, and after it did.
    let (level, what, todo) = say("0", vec![], &[("train.py", 12)]).unwrap();
    assert_eq!(level, Level::Note);
    assert_eq!(what, "train.py:12 calls int() on the entries of CUDA_VISIBLE_DEVICES");
    assert!(todo.contains("ids=index"), "{todo}");
    assert_eq!(say(uuid, vec![], &[("train.py", 12)]).unwrap().0, Level::Warning);
    let (level, what, _) = say(uuid, vec![package("jax", "0.8.0", None)], &[]).unwrap();
    assert_eq!(level, Level::Note);
    assert!(what.contains("jax 0.8.0 reads UUIDs") && what.contains("int()"), "{what}");
}

#[test]
fn fc_24_lost_peer_access_is_a_matter_of_performance() {
    let env = [
        ("SLURM_JOB_ID", "12"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_NODEID", "0"),
        ("SLURM_STEP_TASKS_PER_NODE", "4"),
        ("SLURMD_TRES_BIND", "gres/gpu:per_task:1"),
        ("CUDA_VISIBLE_DEVICES", "0"),
    ];
    let say = |minors: &[u32]| {
        let found = findings::findings(&patient(scene(&node("tidy4"), minors, &env)));
        found.into_iter().find(|finding| finding.why.contains("makes NCCL and MPI slower"))
    };
    let finding = say(&[2]).unwrap();
    assert_eq!(finding.level, Level::Note);
    assert!(
        finding.todo.contains("--gpu-align=all") && finding.todo.contains("allow-task-sharing")
    );
    assert_eq!(say(&[2, 3]), None);
}

/// The node's card of this rank, as a NVML that tells nothing more has it.
fn unasked(patient: &Patient, rank: usize) -> CardUse {
    let card = patient.scene.cards().cards()[rank].clone();
    CardUse {
        pci: card.pci,
        uuid: card.uuid,
        total: None,
        free: None,
        load: None,
        compute_mode: None,
        persistence: None,
        mig: None,
        slices: vec![],
        processes: None,
    }
}

#[test]
fn fc_45_persistence_is_what_nvml_says() {
    let say = |persistence: Option<bool>| {
        let mut patient = patient(scene(&node("tidy4"), &[2], &[]));
        let card = CardUse { persistence, mig: Some(false), ..unasked(&patient, 2) };
        patient.usage = Ok(Usage { cards: vec![card], ..Usage::default() });
        let mut found = findings::findings(&patient).into_iter();
        found.find(|finding| finding.what.contains("persistence")).map(|finding| finding.what)
    };
    assert_eq!(say(Some(false)).unwrap(), "card 0000:51:00.0 is not in persistence mode");
    assert_eq!((say(Some(true)), say(None)), (None, None));
}

#[test]
fn a_card_in_mig_mode_without_slices_is_wrong() {
    let say = |name: &str, slices: Vec<_>| {
        let mut patient = patient(scene(&node(name), &[0], &[]));
        let card = CardUse { mig: Some(true), slices, ..unasked(&patient, 0) };
        patient.usage = Ok(Usage { cards: vec![card], ..Usage::default() });
        let found = findings::findings(&patient).into_iter().find(|f| f.what.contains("MIG mode"));
        found.map(|finding| (finding.level, finding.what))
    };
    let what = "card 0000:11:00.0 is in MIG mode and has no slice".to_owned();
    assert_eq!(say("tidy4", vec![]), Some((Level::Wrong, what)));
    // fc06 has slices that this process may not open, and NVML does not list them.
    assert_eq!(say("fc06", vec![]), None);
}

#[test]
fn a_step_whose_cards_cannot_be_told_is_not_told_to_use_srun() {
    let env = [
        ("SLURMD_NODENAME", "n1"),
        ("SLURM_JOB_ID", "12"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_GPUS", "0,9"),
    ];
    let say = |env: &[(&str, &str)], minors: &[u32]| {
        let mut scene = scene(&node("tidy4"), minors, env);
        let cards = scene.cards().devices().map(Some);
        scene.positions = Ok(Some(cards.chain([None; 6]).collect()));
        let why = scene.allotted().unwrap_err();
        let found = findings::findings(&patient(scene));
        found.into_iter().find(|finding| finding.what == why).unwrap().todo
    };
    assert_eq!(say(&env, &[0]), "ask the admin, with this page");
    assert_eq!(say(&env[..2], &[0, 1, 2, 3]), "start the program with srun");
}

#[test]
fn fc_48_a_slurm_that_the_plugin_does_not_know_is_wrong() {
    let say = |line: Option<&str>, release| {
        let mut patient = patient(scene(&node("tidy4"), &[2], &[("SLURM_JOB_ID", "12")]));
        patient.plugin.line = line.map(str::to_owned);
        patient.plugin.slurm = Some(plugin::Slurm { program: "/usr/bin/sinfo".into(), release });
        let found = findings::findings(&patient).into_iter().find(|f| f.topic == "plugin");
        found.filter(|finding| finding.level == Level::Wrong).map(|finding| finding.what)
    };
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        say(Some("plugstack.conf:1"), (26, 11)),
        Some(format!(
            "/usr/bin/sinfo -V says Slurm 26.11, which gpu-align {version} does not know"
        ))
    );
    assert_eq!(say(Some("plugstack.conf:1"), (24, 5)), None);
    assert_eq!(say(None, (26, 11)), None);
}

#[test]
fn fc_01_minors_and_pci_order_differ_is_a_note_where_devices_are_constrained_else_a_warning() {
    let env = [
        ("SLURMD_NODENAME", "n1"),
        ("SLURM_JOB_ID", "12"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_GPUS", "0"),
        ("CUDA_VISIBLE_DEVICES", "0"),
    ];
    let say = |name: &str, minors: &[u32]| {
        let found = findings::findings(&patient(scene(&node(name), minors, &env)));
        found.into_iter().find(|finding| finding.what.starts_with("minor and PCI order differ"))
    };
    let everything = [0, 1, 2, 3, 4, 5, 6, 7];
    for (reach, level) in [(&everything[..], Level::Warning), (&[0], Level::Note)] {
        let finding = say("inv8p", reach).unwrap();
        assert_eq!(finding.what, "minor and PCI order differ on 8 of 8 cards");
        assert_eq!(finding.level, level);
    }
    assert_eq!(say("tidy8", &everything), None);
}

#[test]
fn a_redacted_page_names_nobody_in_any_finding() {
    let whole = "GPU-8521313e-ac61-4b15-8300-36430748cd46";
    let long = vec![whole; 20].join(",");
    let given = "GPU-00000000-0004-4000-8000-000000000002";
    let env = [
        ("SLURMD_NODENAME", "n1"),
        ("SLURM_JOB_ID", "12"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_GPUS", "0"),
        ("HOME", "/home/zoe"),
        ("USER", "zoe"),
        ("CUDA_VISIBLE_DEVICES", "GPU-8521313e-ac61"),
        ("GPU_ALIGN_VERSION", "0.1.0"),
        ("GPU_ALIGN_UUIDS", given),
        ("NVIDIA_VISIBLE_DEVICES", &long),
        ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/zoe/mps"),
        ("CUDA_DEVICE_ORDER", "/home/bob"),
    ];
    let mut patient = patient(scene(&node("tidy4"), &[0, 1, 2, 3], &env));
    let line = format!("CUDA_VISIBLE_DEVICES={whole},{whole}\nCUDA_DEVICE_ORDER=/home/bob/x\n");
    patient.hits = hands::in_text("/home/bob/env.sh", &line, &[VISIBLE, ORDER]);
    patient.above = vec![hands::Ancestor {
        pid: 41,
        command: "bash /home/bob/run_zoe.sh".into(),
        env: Env([(VISIBLE.to_owned(), given.to_owned())].into()),
    }];
    patient.plugin.line = Some("/etc/slurm/n1/plugstack.conf:1".into());
    patient.plugin.missing = Some("/home/carl/spank_gpu_align.so".into());
    let stub = "/home/bob/cuda/stubs/libcuda.so";
    let dave = "/scratch/dave/lib/libcuda.so.1";
    let found = [(stub, true), ("/home/zoe/lib/libcuda.so.1", false), (dave, false)];
    patient.libraries =
        found.map(|(path, stub)| libraries::Found { path: path.into(), stub }).into();
    let usage = patient.usage.as_mut().unwrap();
    usage.silent = vec![format!("card 3: {whole} is lost")];
    let process = |user: &str, own| Running {
        pid: 4711,
        user: Some(user.into()),
        program: Some("train_bob".into()),
        own,
        pci: "0000:c1:00.0".into(),
        memory: None,
    };
    patient.running = vec![process("bob", false), process("zoe", true), process("70123", false)];
    patient.python = Ok(python::Python {
        interpreter: "/gpfs/home/zoe/env/bin/python3".into(),
        packages: vec![package("vllm", "0.22.1", None)],
    });
    patient.unseen = vec!["the batch script: scontrol of bob@n1 does not answer".into()];
    let redaction = Redaction::of(&mut patient);
    let mut page = Page::of(&patient);
    page.redact(&redaction);
    let topics: Vec<&str> = page.findings.iter().map(|finding| finding.topic).collect();
    for topic in [
        "variable",
        "list",
        "order",
        "files",
        "plugin",
        "libraries",
        "container",
        "mps",
        "cards",
        "busy",
        "python",
    ] {
        assert!(topics.contains(&topic), "no finding on {topic}: {topics:?}");
    }
    // At every width: a name at the end of a line is broken by none.
    let wrapped =
        (40..=100).map(|width| page.text(crate::inside::screen::Screen { width, ..SCREEN }));
    for text in wrapped.chain([serde_json::to_string_pretty(&page).unwrap()]) {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let names =
            regex_lite::Regex::new("(?i)zoe|bob|carl|dave|70123|\\bn1\\b|[0-9a-f]{8}-?").unwrap();
        let leak =
            names.find(&text).map(|found| &text[found.start().saturating_sub(40)..found.end()]);
        assert_eq!(leak, None);
        assert!(text.contains("(pid 4711, user OTHER)") && text.contains("~/lib/"), "{text}");
        assert!(text.contains("GPU-8521…cd46,"), "{text}");
    }
}

#[test]
fn a_home_that_a_line_would_break_is_redacted_all_the_same() {
    let env = [("HOME", "/srv/zoe quill"), ("CUDA_MPS_PIPE_DIRECTORY", "/srv/zoe quill/mps")];
    let mut patient = patient(scene(&node("tidy4"), &[0], &env));
    let path = "/srv/zoe quill/lib/libcuda.so.1".to_owned();
    patient.libraries = vec![libraries::Found { path, stub: false }];
    let redaction = Redaction::of(&mut patient);
    let mut page = Page::of(&patient);
    page.redact(&redaction);
    for width in 40..=100 {
        let text = page.text(crate::inside::screen::Screen { width, ..SCREEN });
        assert!(!text.contains("quill") && text.contains("~/lib/libcuda.so.1"), "{text}");
    }
}
