import { openAll } from "../core/page.js";
import mount from "./matrix.js";

openAll(mount);
