// Asks so often for the time, by code that java has made, for each line that comes in.
import java.util.Scanner;

class Asks {
    static long sum;

    static void asks() {
        sum += System.nanoTime();
    }

    static void round(int n) {
        for (int i = 0; i < n; i++) {
            asks();
        }
    }

    public static void main(String[] arguments) {
        System.out.println("ready pid=" + ProcessHandle.current().pid());
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextInt()) {
            round(lines.nextInt());
            System.out.println("done");
        }
    }
}
