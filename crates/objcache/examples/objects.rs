//! Objects that any context can take and give, with a reader that still looks at one that was given back.

use objcache::ObjectCache;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cache = ObjectCache::builder(64).reserve(1000).build()?;
    let view = cache.view(); // what a handler would use

    let object = view.alloc().expect("a new cache has some");
    let word = view.payload(object).cast::<u64>();
    // SAFETY: 64 bytes of our own.
    unsafe { word.write(42) };

    let section = objcache::domain().fast();
    // SAFETY: taken above, and nobody else finds it.
    unsafe { view.free_rcu(object) };
    // SAFETY: this reader began before the object was retired, so its bytes stay as they are.
    assert_eq!(unsafe { word.read() }, 42);
    drop(section);

    println!("{:?}", cache.census());
    cache.destroy().wait()?;
    Ok(())
}
