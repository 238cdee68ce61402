import { openAll } from "../core/page.js";
import mount from "./layer_map.js";

openAll(mount);
