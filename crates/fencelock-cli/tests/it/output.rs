//! Whole outputs of `show`, `ls`, `hold`, `watch`, `stores`, `break` and `run`, in text and in JSON.

use crate::support::{Home, Running, tame};
use rustix::process::Signal;

/// One holder and one waiter of `x`.
fn two(home: &Home) -> (Running, Running) {
    let mut holder = home.start(["hold", "x", "--reason", "deploy 88"]);
    holder.line();
    let waiter = home.start(["hold", "x", "--shared"]);
    crate::support::wait_until("the second one waits", || home.ls().contains("\"waiting\":1"));
    (holder, waiter)
}

fn end(running: Running) {
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code, 0);
}

#[test]
fn show_and_ls_of_nothing() {
    let home = Home::new();
    let text = |line: &str| {
        let done = home.say(line);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""));
        done.stdout
    };
    assert_eq!(text("show x"), "x: free\n");
    assert_eq!(text("show x --json"), "{\"name\":\"x\",\"capacity\":0,\"inside\":[],\"waiting\":[]}\n");
    assert_eq!(text("ls"), "");
    assert_eq!(text("--json ls"), "[]\n");
}

#[test]
fn show_and_ls_of_a_holder_and_a_waiter() {
    let home = Home::new();
    let (holder, waiter) = two(&home);
    let pids = [holder.pid().to_string(), waiter.pid().to_string()];
    let text = home.say("show x").stdout;
    assert!(pids.iter().all(|pid| text.contains(&format!("pid {pid} "))), "{text}");
    let words: Vec<String> = text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        words.iter().map(|line| tame(line)).collect::<Vec<_>>(),
        [
            "x: lock",
            "TOKEN MODE WHO SINCE LEASE ENDS IN REASON",
            "inside N exclusive HOST pid N N ms N s deploy N",
            "waiting N shared HOST pid N N ms N s",
        ]
    );
    let json = home.say("show x --json").stdout;
    let owners = |json: String| {
        let mut json: serde_json::Value = serde_json::from_str(&json).unwrap();
        for side in ["inside", "waiting"] {
            let owner = json[side][0]["owner"].take();
            assert_eq!(owner.as_str().unwrap().len(), 32);
            json[side][0]["owner"] = "OWNER".into();
        }
        json.to_string()
    };
    let ticket = |token: &str, mode: &str, reason: &str| {
        format!(
            "{{\"entered_at\":\"N-N-NTN:N:N.NZ\",\"expires_in_ms\":N,\"host\":\"HOST\",\"identity\":\"HOST\",\
             \"mode\":\"{mode}\",\"owner\":\"OWNER\",\"pid\":N,\"reason\":{reason},\"token\":\"{token}\",\"weight\":N}}"
        )
    };
    assert_eq!(
        tame(&owners(json)),
        format!(
            "{{\"capacity\":N,\"inside\":[{}],\"name\":\"x\",\"waiting\":[{}]}}",
            ticket("N", "exclusive", "\"deploy N\""),
            ticket("N", "shared", "null")
        )
    );
    assert_eq!(tame(&home.ls()), "[{\"name\":\"x\",\"inside\":N,\"waiting\":N,\"held_ms\":N}]");
    let table = home.say("ls").stdout;
    let words: Vec<String> = table.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(words.iter().map(|l| tame(l)).collect::<Vec<_>>(), ["NAME INSIDE WAITING HELD FOR", "x N N N ms"]);
    end(holder);
    end(waiter);
    home.assert_nothing_left();
}

#[test]
fn a_semaphore_is_shown_with_its_permits() {
    let home = Home::new();
    let mut holder = home.start(["hold", "pool", "--permits", "2", "--of", "3"]);
    holder.line();
    let text = home.say("show pool").stdout;
    assert!(text.starts_with("pool: semaphore, 2 of 3 permits taken\n") && text.contains("2 permits"), "{text}");
    end(holder);
}

#[test]
fn hold_prints_the_token_and_nothing_else() {
    let home = Home::new();
    let mut hold = home.start(["hold", "x"]);
    let token: u64 = hold.line().parse().unwrap();
    assert!(token > 0);
    hold.signal(Signal::INT);
    let done = hold.finish();
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "", ""));
}

#[test]
fn hold_tells_its_events_as_json() {
    let home = Home::new();
    let mut hold = home.start(["hold", "x", "--json", "--until-eof"]);
    assert_eq!(tame(&hold.line()), "{\"event\":\"acquired\",\"name\":\"x\",\"token\":\"N\",\"waited_ms\":N}");
    hold.say("words are not the end\n");
    hold.close_stdin();
    let done = hold.finish();
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "{\"event\":\"released\"}\n", ""));
}

#[test]
fn run_says_nothing_and_with_json_its_events() {
    let home = Home::new();
    let done = home.say("run x -- echo hello");
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "hello\n", ""));
    let done = home.say("run x --json -- echo hello");
    assert_eq!((done.code, done.stdout.as_str()), (0, "hello\n"));
    assert_eq!(
        tame(&done.stderr),
        "{\"event\":\"acquired\",\"name\":\"x\",\"token\":\"N\",\"waited_ms\":N}\n{\"event\":\"released\"}\n"
    );
}

#[test]
fn run_tells_the_command_what_it_holds() {
    let home = Home::new();
    let script = r#"echo "$FENCELOCK_NAME $FENCELOCK_TOKEN $FENCELOCK_MODE $FENCELOCK_LABEL""#;
    let run = |args: &[&str]| home.run(args.iter().chain(&["--", "sh", "-c", script])).stdout;
    assert_eq!(tame(&run(&["run", "x"])), "x N exclusive sqlite\n");
    assert_eq!(tame(&run(&["run", "x", "--shared", "--namespace", "shop/eu"])), "shop/eu/x N shared sqlite\n");
    assert_eq!(tame(&run(&["run", "x", "--permits", "1", "--of", "2"])), "x N permits sqlite\n");
    assert_eq!(tame(&run(&["run", "a b"])), "%a%Nb N exclusive sqlite\n", "spelled without spaces");
}

#[test]
fn a_failure_as_json() {
    let home = Home::new();
    let mut holder = home.start(["hold", "x"]);
    holder.line();
    let done = home.say("run x --wait 0 --json -- true");
    assert_eq!((done.code, done.stdout.as_str()), (75, ""));
    let json: serde_json::Value = serde_json::from_str(&done.stderr).unwrap();
    assert_eq!((&json["event"], &json["kind"]), (&"error".into(), &"held".into()));
    assert_eq!(json["holder"]["pid"], holder.pid());
    assert!(json["message"].as_str().unwrap().starts_with("x is held by "));
    let done = home.say("show x --frobnicate --json");
    let json: serde_json::Value = serde_json::from_str(&done.stderr).unwrap();
    assert_eq!(
        (&json["event"], &json["kind"], &json["holder"]),
        (&"error".into(), &"usage".into(), &serde_json::Value::Null)
    );
    end(holder);
}

#[test]
fn names_come_back_as_they_were_typed() {
    let home = Home::new();
    let mut one = home.start(["hold", "stock/42", "--namespace", "shop"]);
    let mut other = home.start(["hold", "a b\u{1b}[31m"]);
    one.line();
    other.line();
    let listed = |line: &str| home.say(line).stdout.lines().skip(1).map(tame).collect::<String>();
    assert!(listed("ls --namespace shop").starts_with("stock/N "));
    assert!(listed("ls --namespace shop sto").starts_with("stock/N "));
    assert_eq!(listed("ls --namespace shop other"), "");
    let all = home.say("ls").stdout;
    assert!(all.contains("a b\\u{1b}[31m") && !all.contains('\u{1b}') && all.contains("shop/stock/42"), "{all}");
    end(one);
    end(other);
}

#[test]
fn watch_tells_each_change_as_a_line() {
    let home = Home::new();
    let mut watch = home.start(["watch"]);
    // The first holder may come before or after the first look; either way it is told.
    let mut holder = home.start(["hold", "x"]);
    holder.line();
    assert_eq!(tame(&watch.line()), "{\"name\":\"x\",\"inside\":N,\"waiting\":N,\"held_ms\":N}");
    end(holder);
    assert_eq!(watch.line(), "{\"name\":\"x\",\"inside\":0,\"waiting\":0,\"held_ms\":0}");
    watch.signal(Signal::INT);
    assert_eq!(watch.finish().code, -2, "nothing is held: the signal just ends it");
}

#[test]
fn stores_in_text_and_json() {
    let home = Home::new();
    let done = home.say("stores");
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    assert_eq!(
        done.stdout,
        "memory:[NAME]
    for the tasks and threads of this process
    fair; tokens grow while the process lives; waiters are woken at once
    options: namespace, label
sqlite:PATH
    for the processes of one host, in a file
    fair; tokens grow for ever, restarts and power loss included; waiters are woken at once
    options: namespace, label
redis://[USER:PASSWORD@]HOST[:PORT][/DB]
    for everybody who reaches a Redis server
    fair; tokens grow over restarts, lost data included, while the server's clock does not go back; waiters are woken at once
    options: namespace, label, evictable, replicas, spin
rediss://[USER:PASSWORD@]HOST[:PORT][/DB]
    for the same over TLS
    fair; tokens grow over restarts, lost data included, while the server's clock does not go back; waiters are woken at once
    options: namespace, label, evictable, replicas, ca, cert, key
redis+unix:///PATH
    for a Redis server behind a socket file
    fair; tokens grow over restarts, lost data included, while the server's clock does not go back; waiters are woken at once
    options: namespace, label, evictable, replicas, spin, db, user, password
redis+sentinel://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]/MASTER
    for the Redis master that the sentinels name
    fair; a failover may give two holders, with tokens that tell them apart; waiters are woken at once
    options: namespace, label, evictable, replicas, db, sentinel_user, sentinel_password
rediss+sentinel://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]/MASTER
    for the same, sentinels and master over TLS
    fair; a failover may give two holders, with tokens that tell them apart; waiters are woken at once
    options: namespace, label, evictable, replicas, db, sentinel_user, sentinel_password, ca, cert, key
redis+cluster://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]
    for everybody who reaches a Redis Cluster
    fair; a failover may give two holders, with tokens that tell them apart; waiters are woken at once
    options: namespace, label, evictable
rediss+cluster://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]
    for the same over TLS
    fair; a failover may give two holders, with tokens that tell them apart; waiters are woken at once
    options: namespace, label, evictable, ca, cert, key
quorum:redis://HOST[:PORT]|redis://HOST[:PORT]|redis://HOST[:PORT]
    for a majority of independent Redis masters (Redlock)
    not fair; goes on without a minority; a node that forgets may give two holders, with tokens that tell them apart; no permits, no upgrade, nobody can be put out
    options: namespace, label, node_timeout, longest_lease, young, evictable, ca, cert, key
postgres://[USER:PASSWORD@]HOST[:PORT][,HOST...]/DATABASE
    for everybody who reaches a PostgreSQL database
    fair; tokens grow for ever, while the database keeps what it has committed; waiters are woken at once, or ask again and again behind a pooler
    options: namespace, label, mode, migrate, listen, schema, sslmode, sslrootcert
mysql://[USER:PASSWORD@]HOST[:PORT][,HOST...]/DATABASE
    for everybody who reaches a MySQL or MariaDB database
    fair; tokens grow for ever, while the database keeps what it has committed; waiters ask again and again, all of a process at once
    options: namespace, label, mode, migrate, tls, ca
zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST...][/CHROOT]
    for everybody who reaches a ZooKeeper ensemble; Curator's recipes see the same locks
    fair; tokens grow for ever, also over leader changes; waiters are woken at once; exclusion with Curator's mutex and read-write lock
    options: namespace, label, session, acl, ca, cert, key
etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]
    for everybody who reaches an etcd cluster
    fair; tokens grow for ever, over the loss of any minority of the servers; waiters are woken at once, and so is a holder whose session ends; leases of 2 s and more
    options: namespace, label
etcds://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]
    for the same over TLS
    fair; tokens grow for ever, over the loss of any minority of the servers; waiters are woken at once, and so is a holder whose session ends; leases of 2 s and more
    options: namespace, label, ca, cert, key
consul://[TOKEN@]HOST[:PORT]
    for everybody who reaches a Consul cluster
    fair; tokens grow for ever, over the loss of any minority of the servers; waiters are woken at once; leases of 10 s and more; a dead holder blocks for up to two of its leases; layout=consul-lock shares the lock of `consul lock`: mutexes only, not fair
    options: namespace, label, layout, lock_delay
consuls://[TOKEN@]HOST[:PORT]
    for the same over TLS
    fair; tokens grow for ever, over the loss of any minority of the servers; waiters are woken at once; leases of 10 s and more; a dead holder blocks for up to two of its leases; layout=consul-lock shares the lock of `consul lock`: mutexes only, not fair
    options: namespace, label, layout, lock_delay, ca, cert, key
"
    );
    let json: serde_json::Value = serde_json::from_str(&home.say("stores --json").stdout).unwrap();
    assert_eq!(json[1]["scheme"], "sqlite");
    assert_eq!(json[1]["built_in"], true);
    assert!(!home.store().exists(), "it creates nothing");
}

#[test]
fn verbose_says_what_happens() {
    let home = Home::new();
    let done = home.say("run x -v -- true");
    assert_eq!(done.code, 0);
    assert!(done.stderr.contains("DEBUG acquired") && done.stderr.contains("DEBUG released"), "{}", done.stderr);
    let done = home.say("run x -v --json -- true");
    for line in done.stderr.lines() {
        serde_json::from_str::<serde_json::Value>(line).expect("every line is JSON");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let home = Home::new();
    let mut command = home.command("bash");
    command.args(["-c", "fencelock completions bash | head -n 1 >/dev/null; echo ${PIPESTATUS[0]}"]);
    let done = crate::support::finish(command);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("0\n", ""));
}

#[test]
fn stores_compared_in_text_and_json() {
    let home = Home::new();
    let done = home.say("stores --compare");
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let sqlite = "sqlite: shared by one host; needs a file on a local disk\n    survives kill -9 of any process, a restart, a power cut\n";
    assert!(done.stdout.contains(sqlite), "{}", done.stdout);
    let done = home.say("stores --compare --json");
    let stores: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let memory = &stores[0];
    assert_eq!((memory["store"].as_str(), memory["shared_by"].as_str()), (Some("memory"), Some("one process")));
    assert!(memory["one_worker_per_second"].is_null(), "nobody measures it: {memory}");
    let measured: Vec<_> =
        stores.as_array().unwrap().iter().filter(|store| store["one_worker_per_second"].is_u64()).collect();
    assert!(measured.iter().any(|store| store["store"] == "redis"), "{stores}");
    // Every store of docs/choosing.md.
    let names: Vec<_> = stores.as_array().unwrap().iter().filter_map(|store| store["store"].as_str()).collect();
    for store in ["memory", "sqlite", "redis", "quorum", "zookeeper", "etcd", "consul", "postgres", "mysql"] {
        assert!(names.contains(&store), "{store} is missing: {names:?}");
    }
}
