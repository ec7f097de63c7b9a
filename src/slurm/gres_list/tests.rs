use super::*;
use crate::device::{Card, Slice};
use proptest::prelude::*;

const INV8P: [u32; 8] = [4, 5, 6, 7, 2, 3, 0, 1];

/// Cards of these minors, in PCI order.
fn node(minors: &[u32]) -> Inventory {
    let card = |(rank, &minor): (usize, &u32)| Card {
        pci: format!("0000:{:02x}:00.0", 1 + 8 * rank).parse().unwrap(),
        minor: Minor(minor),
        uuid: None,
        model: "NVIDIA A100-SXM4-80GB".into(),
        numa: None,
        slices: Vec::new(),
    };
    Inventory::new(minors.iter().enumerate().map(card).collect())
}

fn slice(last: u8, gi: u32, cap_minors: [u32; 2]) -> Slice {
    Slice {
        uuid: format!("MIG-00000000-00a0-5000-8000-0000000000{last:02x}").parse().unwrap(),
        gi,
        ci: 0,
        profile: "1g.10gb".into(),
        cap_minors,
    }
}

/// A tidy `/dev`: the digits are the minor.
fn dev(file: &str) -> Option<(u32, u32)> {
    if let Some(cap) = file.strip_prefix("/dev/nvidia-caps/nvidia-cap") {
        return Some((234, cap.parse().ok()?));
    }
    Some((195, file.strip_prefix("/dev/nvidia")?.parse().ok()?))
}

fn list_of(gres: &str, slurm: &str, inventory: &Inventory) -> GresList {
    GresList::from_text(gres, slurm, "n1", &dev, inventory).unwrap()
}

fn cards(list: &GresList) -> Vec<Option<usize>> {
    list.positions().map(|p| list.card(p)).collect()
}

/// Ranks by position on a node of these minors, without slurm.conf.
fn ranks(gres: &str, minors: &[u32]) -> Vec<usize> {
    let list = list_of(gres, "", &node(minors));
    cards(&list).into_iter().map(Option::unwrap).collect()
}

#[test]
fn without_autodetect_the_order_is_gres_confs() {
    let by_minor = [6, 7, 4, 5, 0, 1, 2, 3];
    assert_eq!(ranks("Name=gpu File=/dev/nvidia[0-7]", &INV8P), by_minor);
    let mut reversed = String::new();
    for minor in (0..8).rev() {
        reversed += &format!("Name=gpu File=/dev/nvidia{minor}\n");
    }
    assert_eq!(ranks(&reversed, &INV8P), [3, 2, 1, 0, 5, 4, 7, 6]);
    assert_eq!(ranks("Name=gpu File=/dev/nvidia[5,0-1]", &INV8P), [1, 6, 7]);
}

#[test]
fn with_autodetect_nvml_the_order_is_pci_order() {
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    assert_eq!(ranks("AutoDetect=nvml", &INV8P), all);
    assert_eq!(ranks("AutoDetect=nvml\nName=gpu Type=a100", &INV8P), all);
    assert_eq!(ranks("AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-3]", &INV8P), [4, 5, 6, 7]);
}

#[test]
fn with_autodetect_nvidia_the_order_is_the_files_as_numbers() {
    assert_eq!(ranks("AutoDetect=nvidia", &INV8P), [6, 7, 4, 5, 0, 1, 2, 3]);
    let twelve: Vec<u32> = (0..12).rev().collect();
    assert_eq!(ranks("AutoDetect=nvidia", &twelve), Vec::from_iter((0..12).rev()));
    assert_eq!(ranks("AutoDetect=nvidia\nName=gpu File=/dev/nvidia[10-11,2]", &twelve), [9, 1, 0]);
}

#[test]
fn fc14_a_links_digits_are_not_its_minor() {
    let minors = [("A0", 3), ("A1", 1), ("A2", 0), ("A3", 2)];
    let stat = |file: &str| {
        let name = file.strip_prefix("/dev/gpu")?;
        let &(_, minor) = minors.iter().find(|(link, _)| *link == name)?;
        Some((195, minor))
    };
    let inventory = node(&[0, 1, 2, 3]);
    let gres = "Name=gpu File=/dev/gpuA[0-3]";
    let list = GresList::from_text(gres, "", "n1", &stat, &inventory).unwrap();
    assert_eq!(cards(&list), [Some(3), Some(1), Some(0), Some(2)]);
}

#[test]
fn a_file_without_a_card_still_takes_its_position() {
    let minors = [0, 1, 3, 4, 5, 6, 7];
    let list = list_of("Name=gpu File=/dev/nvidia[0-7]", "", &node(&minors));
    assert_eq!(list.card(2), None);
    assert_eq!(list.card(5), Some(4));
    assert_eq!(list.len(), 8);
    let other = |_: &str| Some((10, 0));
    let list = GresList::from_text("Name=gpu File=/dev/null", "", "n1", &other, &node(&[0]));
    assert_eq!(cards(&list.unwrap()), [None]);
}

#[test]
fn slurm_confs_count_cuts_the_list() {
    let inventory = node(&INV8P);
    let slurm = "NodeName=n1 Gres=gpu:4";
    let list = list_of("Name=gpu File=/dev/nvidia[0-7]", slurm, &inventory);
    assert_eq!(cards(&list), [Some(6), Some(7), Some(4), Some(5)]);
    // AutoDetect takes the first by file, then sorts by PCI.
    let list = list_of("AutoDetect=nvml", slurm, &inventory);
    assert_eq!(cards(&list), [Some(4), Some(5), Some(6), Some(7)]);
    // gres.conf names one, AutoDetect fills the rest.
    let list = list_of("AutoDetect=nvml\nName=gpu File=/dev/nvidia7", slurm, &inventory);
    assert_eq!(cards(&list), [Some(3), Some(4), Some(6), Some(7)]);
}

#[test]
fn what_slurm_conf_does_not_count_is_surplus() {
    let surplus = |gres: &str, slurm: &str| {
        let list = list_of(gres, slurm, &node(&[0, 1, 2]));
        let surplus = list.surplus().iter();
        surplus.map(|device| (device.file.clone(), device.card)).collect::<Vec<_>>()
    };
    let files = "Name=gpu File=/dev/nvidia[0-2]\nName=gpu Type=b File=/dev/nvidia3";
    let (last, none) = (("/dev/nvidia2".to_owned(), Some(2)), ("/dev/nvidia3".to_owned(), None));
    assert_eq!(surplus(files, "NodeName=n1 Gres=gpu:2"), [last, none.clone()]);
    assert_eq!(surplus(files, "NodeName=n1 Gres=gpu:3"), [none]);
    assert_eq!(surplus(files, "NodeName=n1 Gres=gpu:4"), []);
    // A dynamic node has what its gres.conf says; and AutoDetect names nothing.
    assert_eq!(surplus(files, ""), []);
    assert_eq!(surplus("AutoDetect=nvml", "NodeName=n1 Gres=gpu:2"), []);
}

#[test]
fn slurm_confs_types_come_in_its_order() {
    let gres = "Name=gpu Type=small File=/dev/nvidia0\nName=gpu Type=big File=/dev/nvidia1\n\
                Name=gpu Type=small File=/dev/nvidia2";
    let inventory = node(&[0, 1, 2]);
    let typed = "NodeName=n1 Gres=gpu:big:1,gpu:small:2";
    assert_eq!(cards(&list_of(gres, typed, &inventory)), [Some(1), Some(0), Some(2)]);
    let untyped = "NodeName=n1 Gres=gpu:3";
    assert_eq!(cards(&list_of(gres, untyped, &inventory)), [Some(0), Some(1), Some(2)]);
}

#[test]
fn autodetect_picks_the_cards_of_the_types_asked_for() {
    let mut mixed = node(&[1, 0, 2]).cards().to_vec();
    mixed[1].model = "NVIDIA L4".into();
    let mixed = Inventory::new(mixed);
    let slurm = "NodeName=n1 Gres=gpu:a100:2";
    assert_eq!(cards(&list_of("AutoDetect=nvml", slurm, &mixed)), [Some(0), Some(2)]);
}

#[test]
fn fc06_slices_come_after_whole_cards() {
    let mut with_slices = node(&[0, 1, 2, 3]).cards().to_vec();
    with_slices[0].slices = vec![slice(0, 7, [66, 67]), slice(1, 11, [102, 103])];
    let inventory = Inventory::new(with_slices);
    let part = |slice| Some(Device { card: 0, slice: Some(slice) });

    let list = list_of("AutoDetect=nvml", "", &inventory);
    let devices: Vec<_> = (0..5).map(|p| list.device(p)).collect();
    let whole = |rank| Some(Device::whole(rank));
    assert_eq!(devices, [whole(1), whole(2), whole(3), part(0), part(1)]);

    let gres = "Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[102-103]\n\
                Name=gpu File=/dev/nvidia1";
    let list = list_of(gres, "", &inventory);
    assert_eq!([list.device(0), list.device(1)], [part(1), whole(1)]);
    assert!(list.is_configured(0) && list.position_of(0).is_none());
}

#[test]
fn a_slice_nobody_knows_is_not_taken_for_its_card() {
    let gres = "Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[66-67]";
    let list = list_of(gres, "", &node(&[0]));
    assert_eq!((list.card(0), list.device(0)), (Some(0), None));
}

#[test]
fn no_files_and_no_autodetect_is_unknown() {
    for gres in ["", "Name=gpu Count=4", "NodeName=n2 Name=gpu File=/dev/nvidia0"] {
        let error = GresList::from_text(gres, "", "n1", &dev, &node(&[0])).unwrap_err();
        assert!(matches!(error, GresError::NoGpus { .. }), "{gres}");
    }
}

/// Design rule 2, and FC-02.
#[test]
fn files_are_read_from_folders() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("gres.conf", "Include cards.conf\n");
    write("cards.conf", "Name=gpu File=/dev/nvidia[0-1]\n");
    write("slurm.conf", "NodeName=n1 Gres=gpu:1\n");
    let gres = folder.path().join("gres.conf");
    let list = GresList::read(&gres, "n1", folder.path(), &node(&[0, 1])).unwrap();
    assert_eq!((cards(&list), list.source()), (vec![None], gres.as_path()));
    assert_eq!(device_number(Path::new("/dev/null")), Some((1, 3)));
    assert_eq!(device_number(Path::new("/dev/stdin-or-not")), None);
}

#[test]
fn a_slurm_conf_that_cannot_be_read_is_not_one_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let gres = folder.path().join("gres.conf");
    std::fs::write(&gres, "Name=gpu File=/dev/nvidia[0-1]\n").unwrap();
    let read = || GresList::read(&gres, "n1", folder.path(), &node(&[0, 1]));
    assert!(read().is_ok());
    std::fs::create_dir(folder.path().join("slurm.conf")).unwrap();
    let error = read().unwrap_err().to_string();
    assert!(error.contains("/slurm.conf: "), "{error}");
}

#[test]
fn fc41_behind_a_lost_card_autodetects_list_of_today_is_not_slurms() {
    let gres = |count| {
        let slurm = format!("NodeName=n1 Gres=gpu:{count}");
        GresList::from_text("AutoDetect=nvml", &slurm, "n1", &dev, &node(&[0, 1, 3]))
    };
    assert!(gres(3).is_ok());
    let error = gres(4).unwrap_err().to_string();
    assert!(
        error.ends_with("finds 3 of the 4 GPUs that slurm.conf counts; look for a lost card"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn any_bytes_end_in_a_list_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let text = String::from_utf8_lossy(&bytes);
        let _ = GresList::from_text(&text, &text, "n1", &dev, &node(&INV8P));
    }

    #[test]
    fn any_words_end_in_a_bounded_list(
        words in proptest::collection::vec(
            proptest::sample::select(vec![
                "Name=gpu", "NodeName=n[1-3]", "File=", "/dev/nvidia", "[0-7]", "[0-4294967295]", " ",
                "\n", "AutoDetect=", "nvml", "nvidia", "Type=", "a100", "Count=4", "MultipleFiles=",
                "Links=-1,0", "Gres=gpu:a100:3", ",", "\\", "#", "\"", "Include x", "=", "é",
            ]),
            0..40,
        ),
    ) {
        let text = words.concat();
        if let Ok(list) = GresList::from_text(&text, &text, "n1", &dev, &node(&INV8P)) {
            prop_assert!((1..=gres_conf::MAX_POSITIONS).contains(&list.len()));
        }
    }
}
