/** A client of Windlass services, on nothing but the JDK. */
module dev.windlass {
    requires transitive java.net.http;

    exports dev.windlass;
}
