//! Several sessions under one user, looked up while others come and go.

use coll::RhlTable;

fn main() -> Result<(), coll::InsertError> {
    let sessions = RhlTable::new();
    let first = sessions.insert("ann", 7001)?;
    sessions.insert("ann", 7002)?;
    sessions.insert("bob", 7003)?;

    std::thread::scope(|s| {
        s.spawn(|| {
            for port in 0..10_000 {
                let handle = sessions.insert("guest", port).expect("there is memory");
                assert!(sessions.remove(handle));
            }
        });
        for _ in 0..10_000 {
            let reader = sessions.read();
            assert_eq!(reader.get(&"ann").copied().collect::<Vec<_>>(), [7002, 7001]);
        }
    });

    assert!(sessions.remove(first));
    assert!(sessions.remove_if(&"bob", |port| *port == 7003));
    println!(
        "{} user(s), ann's sessions: {:?}",
        sessions.keys(),
        sessions.read().get(&"ann").collect::<Vec<_>>()
    );
    Ok(())
}
