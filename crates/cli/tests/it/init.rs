//! `init`.

use crate::fuse::User;

#[test]
fn what_is_written_validates_and_compiles() {
    let user = User::new();
    let run = user.run(&["init"]).ok();
    assert_eq!(run.stdout, "");
    assert_eq!(
        run.stderr,
        "wrote Fusefile\nwrote .fuseignore\nnext: fuse up --secret postgres_password=<value>\n"
    );
    user.run(&["validate"])
        .ok()
        .says("required secrets: postgres_password");
    user.run(&["up", "--dry-run", "--secret", "postgres_password=x"])
        .ok();
    let ignore = user.read(".fuseignore");
    assert!(ignore.lines().all(|line| line.starts_with('#')), "{ignore}");

    let run = user
        .run(&["init", "--minimal", "-f", "sub/Fusefile"])
        .exits(1);
    assert!(
        run.stderr.starts_with("could not write sub/Fusefile: "),
        "{}",
        run.stderr
    );
    user.write("sub/keep", "");
    user.run(&["init", "--minimal", "sub"])
        .ok()
        .says("next: fuse up -f sub/Fusefile\n");
    assert!(
        user.read("sub/Fusefile")
            .starts_with("# yaml-language-server: $schema=http")
    );
    let json = user
        .run(&["init", "-o", "json", "other.yaml", "--force"])
        .ok()
        .json();
    assert_eq!(
        json,
        serde_json::json!({"id": "other.yaml", "action": "init"})
    );
}

#[test]
fn nothing_is_replaced_unless_forced() {
    let user = User::new();
    user.write(".fuseignore", "mine\n");
    user.run(&["init"])
        .exits(1)
        .says(".fuseignore is there already, nothing was written");
    assert_eq!(user.read("Fusefile"), "");
    // A name that is found is the one that is written, and it is in the way, too.
    user.write("fusefile.yml", "version: 1\n");
    user.run(&["init"])
        .exits(1)
        .says("fusefile.yml is there already");
    user.run(&["init", "--force"])
        .ok()
        .says("wrote fusefile.yml");
    assert!(user.read("fusefile.yml").contains("build:"));
    assert!(user.read(".fuseignore").contains("node_modules/"));
}
