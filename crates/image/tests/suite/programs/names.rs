// Methods, generics and closures.
mod shop {
    pub struct Till(pub u64);
    impl Till {
        #[inline(never)]
        pub fn ring(&mut self, price: u64) -> u64 {
            self.0 += price;
            self.0
        }
    }
    #[inline(never)]
    pub fn total<T: Into<u64> + Copy>(items: &[T]) -> u64 {
        items.iter().map(|&i| i.into()).sum()
    }
}

fn main() {
    let mut till = shop::Till(std::env::args().count() as u64);
    let sizes: Vec<u32> = std::env::args().map(|a| a.len() as u32).collect();
    println!("{} {}", till.ring(3), shop::total(&sizes));
}
