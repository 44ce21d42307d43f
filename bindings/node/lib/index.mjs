import trunkline from './index.js';

export const { Client, Channel, Connection, SFTP, configure, connect, utils } = trunkline;
export default trunkline;
